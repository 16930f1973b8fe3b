"""``python -m vqx``: the command line."""

from vqx.cli import main

if __name__ == "__main__":
    main()
