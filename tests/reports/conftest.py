import sys
from pathlib import Path

# So that the tests find "made" and "browser".
sys.path.insert(0, str(Path(__file__).parent))
