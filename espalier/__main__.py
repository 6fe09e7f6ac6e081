"""``python -m espalier`` is the command ``espalier``."""

from espalier.cli.main import main

if __name__ == "__main__":
    main()
