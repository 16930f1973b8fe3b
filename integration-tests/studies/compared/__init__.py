"""What the comparison is made of: settings of ours, caches of others, and the page's tables and pictures."""
