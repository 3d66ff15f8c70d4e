"""`python -m fu_papers --profile quick --paper puf`: see fu_papers.lab.reproduce."""

import sys

from fu_papers.lab.reproduce import main

if __name__ == "__main__":
    sys.exit(main())
