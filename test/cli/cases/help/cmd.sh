# Help of every command goes to standard output, names the command, and fits 80 columns.
set -e
kvcodec help
for command in $(kvcodec help | sed -n 's/^  \([a-z][a-z-]*\)  .*/\1/p'); do
  kvcodec $command --help >page
  kvcodec help $command | cmp - page
  kvcodec $command nonsense --help --nonsense | cmp - page
  sed -n '/^usage:/,/^$/p' page | grep .
  awk 'length > 80 { print "too long: " $0 }' page
  for word in "Example" "Exit status" "--threads" "--device" "--json" "man kvcodec-$command"; do
    grep -q -e "$word" page || echo "$command: no $word"
  done
done
kvcodec --version | grep -E -c "^kvcodec [0-9]+\.[0-9]+\.[0-9]+$"
kvcodec -h | head -n 1
kvcodec --help | head -n 1
kvcodec help | awk 'length > 80 { print "too long: " $0 }'
kvcodec help fp8
kvcodec help fp8+none | head -n 2
kvcodec help none
kvcodec help kivi --preset paper | grep -e '^  --bits'
kvcodec help encode --codec kivi --preset paper | grep -e '^  --bits'
kvcodec help encode --codec kivi:preset=paper,bits=4 | grep -e '^  --bits'
kvcodec help train-rvq | grep -e '--no-bias'
kvcodec help train-dict | grep -e '--seed'
kvcodec help encode | grep -e '--seed'
