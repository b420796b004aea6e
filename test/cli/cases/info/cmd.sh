# What info says of each type.
kvcodec info data/kv.h5
kvcodec info data/kivi.h5 --documents a --layers 1
kvcodec info data/dict.h5
kvcodec info data/dict.h5 --layers 1
