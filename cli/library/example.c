/* Reads a document from a kv file or a codes file as an engine would: layer by layer, into memory of its own.
 * cc example.c -lkvcodec -lm && ./a.out codes.h5 0        prints the shape of each layer, and the root mean square of its keys and values
 */
#include <kvcodec.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static int fail(void) {
  fprintf(stderr, "%s\n", kvcodec_error());
  return 1;
}

static double root_mean_square(const float* values, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += (double)values[i] * values[i];
  return count == 0 ? 0 : sqrt(sum / (double)count);
}

int main(int argc, char** argv) {
  if (argc < 2 || kvcodec_interface() != KVCODEC_INTERFACE) {
    fprintf(stderr, "usage: example FILE [DOCUMENT]\n");
    return 2;
  }
  const uint64_t number = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
  kvcodec_file* file;
  if (kvcodec_open(argv[1], NULL, &file) != 0) return fail();

  kvcodec_document document;
  kvcodec_model model;
  if (kvcodec_get_document(file, number, &document) != 0 || kvcodec_get_model(file, &model) != 0) return fail();
  printf("%s: %llu tokens, by %s\n", document.name, (unsigned long long)document.tokens,
         kvcodec_codec(file)[0] != '\0' ? kvcodec_codec(file) : "no codec");

  for (int32_t layer = 0; layer < model.layers; ++layer) {
    kvcodec_layer shape;
    int stored;
    uint64_t left_out;
    if (kvcodec_get_layer(file, layer, &shape, &stored) != 0 || kvcodec_left_out(file, number, layer, &left_out) != 0)
      return fail();
    if (!stored) continue;
    const uint64_t count = document.tokens - left_out;
    const size_t keys = count * shape.heads * shape.key_dims;
    const size_t values = shape.values_in_keys ? 0 : count * shape.heads * shape.value_dims;
    float* memory = malloc((keys + values) * sizeof(float));
    if (memory == NULL && keys > 0) return 1;
    if (kvcodec_decode(file, number, layer, KVCODEC_KEY, left_out, count, KVCODEC_F32, memory) != 0) return fail();
    if (values > 0 &&
        kvcodec_decode(file, number, layer, KVCODEC_VALUE, left_out, count, KVCODEC_F32, memory + keys) != 0)
      return fail();
    printf("layer %d: %u heads of %u and %u; keys %.3f, values %.3f\n", (int)layer, (unsigned)shape.heads,
           (unsigned)shape.key_dims, (unsigned)shape.value_dims, root_mean_square(memory, keys),
           root_mean_square(memory + keys, values));
    free(memory);
  }
  kvcodec_close(file);
  return 0;
}
