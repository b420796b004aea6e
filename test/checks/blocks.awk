# The lines of a Markdown file's blocks of one mark, an empty line between blocks: usage awk -v mark="sh tour" -f blocks.awk README.md
# Exit 3 for a block without an end, 4 without a block.
inside && /^```/ { inside = 0; print ""; next }
inside { print }
$0 == "```" mark { inside = 1; found = 1 }
END { if (inside) exit 3; if (!found) exit 4 }
