"""`python -m scale_cl` is the command `scale-cl`."""

from scale_cl.cli.main import main

if __name__ == "__main__":
    main()
