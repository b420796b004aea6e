# A run that is told to stop leaves the old output and no remnant. The command waits for its standard input, so it is surely running.
echo old >out.h5
mkfifo pipe
(exec 3>pipe; sleep 20) &
holder=$!
kvcodec encode - --codec none -o out.h5 --overwrite <pipe &
command=$!
sleep 1
kill -TERM $command
wait $command
echo "status $?"
kill $holder
rm pipe
cat out.h5
ls -A
