# An output that cannot be written.
. src/test/cli/refused.sh
refused encode data/kv.h5 --codec none -o no/such/folder/x.h5
mkdir folder
refused encode data/kv.h5 --codec none -o folder
refused encode data/kv.h5 --codec none -o folder --overwrite
refused encode data/kv.h5 --codec none -o ""
refused encode data/kv.h5 --codec none
ln -s $PWD/nothing.h5 link.h5
refused encode data/kv.h5 --codec none -o link.h5 | sed "s|$PWD|.|"
ls -A . folder
