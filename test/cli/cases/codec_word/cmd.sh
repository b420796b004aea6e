# Options of a codec in the word of --codec, as in eval-model, equal separate options.
kvcodec encode data/kv.h5 --codec kivi:preset=paper,bits=2,key-group=16,window=32 --quiet -o kivi.h5 >/dev/null
kvcodec encode data/kv.h5 --codec kivi:preset=paper,bits=2,window=32 --key-group 16 --quiet -o kivi-both.h5 >/dev/null
kvcodec encode data/kv.h5 --codec sparse:preset=paper,book=data/dict.h5,sparsity=4 --no-pack -o sparse.h5 >/dev/null
kvcodec encode data/kv.h5 --codec kvcomp:preset=paper,key-quant=channel,key-origins,window=0,block=16 -o kvcomp.h5 >/dev/null
content() { # content FILE: parameters and streams; the line of history is another, and with it the file's overhead
  kvcodec info "$1" | sed -n '/^codec/,/^tokens/p; /^stream/,/^document/p'
}
same() { # same FILE OTHER
  content "$1" >own
  content "$2" >other
  [ -s own ] && cmp own other && echo "$1: same"
}
same kivi.h5 data/kivi.h5
same kivi-both.h5 data/kivi.h5
same sparse.h5 data/sparse.h5
same kvcomp.h5 data/kvcomp.h5
kvcodec info kivi.h5 | grep '^  kvcodec encode'
kvcodec decode sparse.h5 --book data/dict.h5 -o word-kv.h5 >/dev/null
kvcodec decode data/sparse.h5 --book data/dict.h5 -o long-kv.h5 >/dev/null
kvcodec eval-recon long-kv.h5 word-kv.h5 | grep '^all'
