"`python -m rl4llm` is the command `rl4llm`."
from rl4llm.app.cli import main

if __name__ == '__main__': main()
