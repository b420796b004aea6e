/* kvcodec's files in C: what libkvcodec.so exports. For engines and other languages; C99 and C++.
 *
 * Functions return 0, or a status like the program's: 1 failed while running, 2 wrong use, 3 bad input file, 4 no device. After any
 * other status than 0 kvcodec_error() has one line that says what is wrong, where, and what would be right. No exception leaves a
 * function, and results that were asked for by pointer are then left as they were.
 *
 * A handle may be used by any thread, by one at a time; different handles by several at once. Strings that a function hands out live
 * as long as their handle, unless it says otherwise. Text is UTF-8.
 *
 * Numbers that functions count by begin at 0. Rows are tokens: (tokens, heads, dimensions), one after the other, without gaps.
 *
 * Memory that a function reads or writes lies where C puts numbers of its type: addresses of f32 are multiples of 4, of f16 and bf16
 * of 2. No larger alignment is needed or gains anything. Rows at other addresses are refused with status 2.
 */
#ifndef KVCODEC_H
#define KVCODEC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Changes with every change that a program compiled before would notice. */
#define KVCODEC_INTERFACE 1
int kvcodec_interface(void);
/* The release: "0.1.0". */
const char* kvcodec_release(void);

/* The error of the calling thread's last function that failed; until its next one fails. */
const char* kvcodec_error(void);

/* Threads that functions compute with; 0 = as many as there are processors. */
int kvcodec_set_threads(int count);

typedef enum kvcodec_type { KVCODEC_F32 = 0, KVCODEC_F16 = 1, KVCODEC_BF16 = 2 } kvcodec_type;
typedef enum kvcodec_side { KVCODEC_KEY = 0, KVCODEC_VALUE = 1 } kvcodec_side;

/* The model of a cache. */
typedef struct kvcodec_model {
  const char* name;
  int32_t layers;
  int32_t query_heads;
  double rope_theta;        /* base of the rotary embedding; 0 = unknown */
  const char* rope_scaling; /* JSON, as in a model's config.json; "" = none */
  const char* key_state;    /* "post-rope" (also NULL, where a cache is written) or "pre-rope" */
  const char* source;       /* where the cache came from, such as "weights DIGEST"; "" = unknown */
  const char* scores;       /* JSON: what the model does to scores of attention (FORMAT.md); "" = unknown */
} kvcodec_model;

/* A layer's keys and values. heads: 0 if it keeps nothing of its own. values_in_keys: 1 if a value is the first value_dims dimensions
 * of its key, and not stored (MLA). source: for a layer without heads the layer whose keys and values its queries use; -1 = none. */
typedef struct kvcodec_layer {
  uint32_t heads, key_dims, value_dims;
  int32_t values_in_keys, source;
} kvcodec_layer;

/* A document: tokens in a row. */
typedef struct kvcodec_document {
  const char* name;
  uint64_t tokens;
  uint64_t time;        /* when its cache was computed, in seconds since 1970; 0 = unknown */
  const char* metadata; /* a JSON object of the user's; "" = none */
} kvcodec_document;

/* A tensor of a document's state: what its model goes on with beside keys and values, behind the last token, as recurrent layers keep
 * it. type: "f32", "f16", "bf16", "f64", or u8 to u64, i32, i64. */
typedef struct kvcodec_tensor {
  const char* name;
  const char* type;
  uint32_t dims;
  const uint64_t* shape;
  uint64_t bytes; /* type's size times all of shape */
} kvcodec_tensor;

/* Reading: kv files (caches as they are) and codes files (caches as encoded), by name or by URL ------------------------------------ */

typedef struct kvcodec_file kvcodec_file;

/* book: the file of the dictionary, codebooks or transform that codes were made with; NULL if it is inside, or none is needed. */
int kvcodec_open(const char* name, const char* book, kvcodec_file** file);
void kvcodec_close(kvcodec_file* file);

/* The codec's name; "" for a kv file. */
const char* kvcodec_codec(const kvcodec_file* file);
/* The type of the cache that was stored. */
kvcodec_type kvcodec_stored_type(const kvcodec_file* file);
/* 1 if the ids of tokens are known. */
int kvcodec_has_ids(const kvcodec_file* file);
uint64_t kvcodec_documents(const kvcodec_file* file);
/* Strings live until the next call with this handle. */
int kvcodec_get_document(kvcodec_file* file, uint64_t document, kvcodec_document* facts);
int kvcodec_get_model(kvcodec_file* file, kvcodec_model* model);
/* *stored: 1 if the file has keys and values of this layer. */
int kvcodec_get_layer(const kvcodec_file* file, int32_t layer, kvcodec_layer* shape, int* stored);
/* *left_out: first tokens of the document that the layer does not hold, because they lie before its window. */
int kvcodec_left_out(const kvcodec_file* file, uint64_t document, int32_t layer, uint64_t* left_out);

/* Ids and positions of tokens [first, first + count) of a document, to out[count]. */
int kvcodec_ids(kvcodec_file* file, uint64_t document, uint64_t first, uint64_t count, uint32_t* out);
int kvcodec_positions(kvcodec_file* file, uint64_t document, uint64_t first, uint64_t count, uint64_t* out);

/* Decodes keys or values of tokens [first, first + count) of a document in one layer, to out: (count, heads, dims of that side) of
 * that type. Values of a lossy codec beyond the type's range become its largest ones. Layers that are coded together are decoded
 * together, and kept until tokens of others are asked for: ask for them one after the other. Digests are verified. */
int kvcodec_decode(kvcodec_file* file, uint64_t document, int32_t layer, kvcodec_side side, uint64_t first, uint64_t count,
                   kvcodec_type type, void* out);

/* *count: tensors of the document's state. */
int kvcodec_state_count(const kvcodec_file* file, uint64_t document, uint64_t* count);
/* What such a tensor is, and its bytes to out, unless that is NULL. Digests are verified. */
int kvcodec_get_state(kvcodec_file* file, uint64_t document, uint64_t number, kvcodec_tensor* tensor, void* out);

/* Writing: a cache in the caller's memory, to a kv file or to codes ---------------------------------------------------------------- */

typedef struct kvcodec_writer kvcodec_writer;

/* Begins a cache. layers: model->layers shapes; all with heads are written. The file appears whole, by kvcodec_finish(). name: NULL for
 * a cache that is only encoded. overwrite: 1 replaces a file of that name. */
int kvcodec_create(const char* name, int overwrite, const kvcodec_model* model, const kvcodec_layer* layers, kvcodec_type type,
                   int with_queries, kvcodec_writer** writer);

/* Begins the next document, whose rows follow. ids: NULL if they are not known (then of no document). positions: rising. left_out: for
 * each layer how many of the first tokens it does not hold; NULL = none. facts->tokens: as many ids and positions there are. Several
 * documents may begin before rows follow: if all begin before the first row, the file has no half-empty chunks. */
int kvcodec_add(kvcodec_writer* writer, const kvcodec_document* facts, const uint32_t* ids, const uint64_t* positions,
                const uint64_t* left_out);

/* The state of the document that was added last, once for a document; bytes: of each of its tensors. */
int kvcodec_set_state(kvcodec_writer* writer, uint64_t count, const kvcodec_tensor* tensors, const void* const* bytes);

/* The next rows of a layer's side, (count, heads, dims), which must be finite: within one layer and side in the order of tokens. */
int kvcodec_append(kvcodec_writer* writer, int32_t layer, kvcodec_side side, kvcodec_type type, uint64_t count, const void* rows);
/* Queries (count, query heads, dims) of tokens of the cache, by their numbers across all documents, which rise. */
int kvcodec_append_queries(kvcodec_writer* writer, int32_t layer, const uint64_t* tokens, kvcodec_type type, uint64_t count,
                           const void* rows);

/* Completes the kv file: synced, then renamed to its name. made_by: a line for the file's history. The writer is gone afterwards,
 * whatever the status. */
int kvcodec_finish(kvcodec_writer* writer, const char* made_by);
/* Encodes the cache instead, by kvcodec encode with these arguments: {"--codec", "q4", "-o", "codes.h5"}. Gone afterwards, too. */
int kvcodec_encode(kvcodec_writer* writer, const char* made_by, int count, const char* const* arguments);
/* Gives up; nothing stays. */
void kvcodec_discard(kvcodec_writer* writer);

/* Runs a command of the program: {"decode", "codes.h5", "-o", "kv.h5", "--quiet"}. *printed: what it prints, until the calling thread
 * runs the next one; NULL if it does not matter. Notes go to standard error, unless --quiet is among the arguments. Commands that end
 * with a status of their own, such as check, print why, and leave kvcodec_error() as it was. */
int kvcodec_run(int count, const char* const* arguments, const char** printed);

#ifdef __cplusplus
}
#endif
#endif
