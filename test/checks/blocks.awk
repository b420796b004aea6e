# The lines of a file's blocks of one mark, an empty line between blocks: usage awk -v mark="sh tour" -f blocks.awk FILE
# In Markdown a block begins with ```MARK and ends with ```. In a manual page it is what stands between .Bd and .Ed behind the comment
# .\" MARK; \e is a backslash there, and \& at the head of a line nothing.
# Exit 3 for a block without an end, 4 without a block.
inside && index($0, end) == 1 { inside = 0; print ""; next }
inside && end == ".Ed" { sub(/^\\&/, ""); gsub(/\\e/, "\\") }
inside { print }
announced { if ($0 !~ /^\.Bd /) exit 3; announced = 0; inside = 1; end = ".Ed" }
!inside && $0 == ".\\\" " mark { announced = found = 1 }
!inside && $0 == "```" mark { inside = found = 1; end = "```" }
END { if (inside || announced) exit 3; if (!found) exit 4 }
