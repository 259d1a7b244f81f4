"""Columns: computed ones, new ones, and how schemas fit."""
