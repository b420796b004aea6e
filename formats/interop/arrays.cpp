#include "formats/interop/arrays.hpp"

#include <algorithm>
#include <numeric>

#include "lib/core/checked.hpp"
#include "lib/core/error.hpp"

namespace kvcodec::interop {

uint64_t Array::extent(char axis) const {
  for (const Axis& own : axes)
    if (own.name == axis) return own.extent;
  return 1;
}

namespace {

bool has_axis(const std::vector<Axis>& axes, char name) {
  return std::any_of(axes.begin(), axes.end(), [name](const Axis& axis) { return axis.name == name; });
}

}  // namespace

void Array::set_shape(std::span<const uint64_t> shape) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end())
    throw bad_input("shape is [{}], which holds nothing", fmt::join(shape, ", "));
  for (size_t i = 0; i < axes.size(); ++i) axes[i].extent = shape[i];
}

uint64_t Array::byte_count() const {
  uint64_t count = block_of(type).bytes;
  for (const Axis& axis : axes) count = checked_mul(count, axis.extent);
  return count;
}

bool Array::has(char axis) const { return has_axis(axes, axis); }

Plane Array::plane(Side side, uint64_t layer, uint64_t document) const {
  const Plane plane = plane_in_array(type, begin, axes, {side, layer, document});
  check_plane(plane, bytes.bytes.size(), where + ": elements");
  return plane;
}

std::vector<Axis> axes_of(const std::string& layout, const std::string& option) {
  std::vector<Axis> axes;
  for (const char letter : layout) {
    if (has_axis(axes, letter) || std::string_view("slbhtd").find(letter) == std::string_view::npos)
      throw usage_error(
          "{} is '{}'; it must be of the letters s (side), l (layer), b (document), h (head), t (token) and d "
          "(dimension), each once",
          option, layout);
    axes.push_back({letter, 1});
  }
  for (const char letter : {'t', 'd'})
    if (!has_axis(axes, letter))
      throw usage_error("{} is '{}'; tokens (t) and dimensions (d) must be among the axes", option, layout);
  return axes;
}

void set_extents(std::vector<Axis>& axes, const Extents& extents, const std::string& option) {
  std::string layout;
  for (const Axis& axis : axes) layout += axis.name;
  const auto require = [&](char name, const char* what, uint64_t count) {
    if (count > 1 && !has_axis(axes, name))
      throw usage_error("{} is '{}', which has no axis of {} ({}), but there are {}", option, layout, what,
                        name, count);
  };
  require('s', "sides", extents.sides), require('l', "layers", extents.layers);
  const uint64_t dims = has_axis(axes, 'h') ? extents.dims : checked_mul(extents.heads, extents.dims);
  for (Axis& axis : axes)
    axis.extent = axis.name == 's'   ? extents.sides
                  : axis.name == 'l' ? extents.layers
                  : axis.name == 'h' ? extents.heads
                  : axis.name == 't' ? extents.tokens
                  : axis.name == 'd' ? dims
                                     : 1;
}

ForeignLayer layer_of(const std::vector<Piece>& pieces, const LayerShape& shape) {
  ForeignLayer layer;
  for (const Side side : kSides) {
    if (side == Side::value && shape.values_in_keys) continue;
    struct Part {
      uint64_t first, tokens;
      ReadRows read;
    };
    std::vector<Part> parts;
    uint64_t tokens = 0;
    for (const Piece& piece : pieces) {
      if (piece.of != Side::both && piece.of != side) continue;
      const Plane plane = piece.array->plane(side, piece.layer, piece.document);
      if (plane.values() != as_size(shape.heads) * as_size(shape.stored_dim(side)))
        throw bad_input("{}: has {} {}s of a token; those of {} heads of {} dimensions are wanted",
                        piece.array->where, plane.values(), name_of(side), shape.heads,
                        shape.stored_dim(side));
      parts.push_back({tokens, plane.tokens, reader_of(piece.array->bytes, plane)});
      tokens = checked_add(tokens, plane.tokens);
    }
    if (side == Side::value && tokens != layer.rows)
      throw bad_input("{}: has values of {} tokens and keys of {}", pieces.front().array->where, tokens,
                      layer.rows);
    layer.rows = tokens;
    layer.sides[static_cast<size_t>(side)] = [parts = std::move(parts)](uint64_t first,
                                                                        MatrixView<float> out) {
      size_t done = 0;
      for (const Part& part : parts) {
        const uint64_t at = first + done;
        if (done == out.rows()) break;
        if (at < part.first || at >= part.first + part.tokens) continue;
        const auto count =
            static_cast<size_t>(std::min<uint64_t>(out.rows() - done, part.first + part.tokens - at));
        part.read(at - part.first, out.rows(done, count));
        done += count;
      }
    };
  }
  return layer;
}

LayerShape heads_in(uint64_t heads, uint64_t dims, const ImportOptions& options, const std::string& where) {
  constexpr uint64_t kMost = 1 << 20;
  const uint64_t values = checked_mul(heads, dims);
  if (values == 0 || values > kMost)
    throw bad_input("{}: a token has {} values, as that of no cache", where, values);
  if (heads == 1 && options.latent == 0) {  // perhaps all heads in one
    if (options.heads > 0)
      heads = static_cast<uint64_t>(options.heads);
    else if (options.head_dim > 0)
      heads = values / static_cast<uint64_t>(options.head_dim);
    else if (options.model && options.model->one_shape())
      heads = static_cast<uint64_t>(options.model->num_kv_heads);
    else
      throw usage_error(
          "{}: does not say how many heads its rows of {} values are of; give --model or --heads", where,
          values);
    if (heads == 0 || values % heads != 0)
      throw usage_error("{}: rows have {} values, which are not those of {} heads", where, values, heads);
    dims = values / heads;
  }
  return usual_layer(static_cast<int>(heads), static_cast<int>(dims));
}

LayerShape latent_layer(uint64_t dims, const ImportOptions& options, const std::string& where) {
  if (options.latent <= 0 || static_cast<uint64_t>(options.latent) > dims)
    throw usage_error("{}: has keys alone, in which values lie; name the model with --model", where);
  return {.heads = 1,
          .key_dim = plausible(dims, where + ": dimensions"),
          .value_dim = options.latent,
          .values_in_keys = true};
}

void write_array(TargetFile& file, const Array& array, const CacheSource& source, const ExportJob& job,
                 std::span<const int> layers, TokenRange rows) {
  for (size_t l = 0; l < layers.size(); ++l)
    for (const Side side : kSides) {
      const LayerShape shape = source.model().layer_shape(layers[l]);
      if (shape.stored_dim(side) == 0) continue;
      Matrix<float> values(static_cast<size_t>(rows.count),
                           as_size(shape.heads) * as_size(shape.stored_dim(side)));
      source.read(side, layers[l], job.documents.front(), rows.first, values);
      file.write(plane_in_array(array.type, array.begin, array.axes, {side, l, 0}), 0, values);
      if (job.count) job.count(rows.count);
    }
}

std::vector<uint64_t> first_positions(uint64_t count) {
  std::vector<uint64_t> positions(count);
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

}  // namespace kvcodec::interop
