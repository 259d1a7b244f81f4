"""The entry file of `spark-submit`: the arguments after it are those of the command `penstock`."""

from penstock.cli.app import main

if __name__ == "__main__":
    main()
