"""Types that wait, fail and catch up."""
