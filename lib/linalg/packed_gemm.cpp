#include "lib/linalg/packed_gemm.hpp"

#include "lib/core/error.hpp"

#ifdef KVCODEC_ONEDNN
#include <algorithm>
#include <map>
#include <string_view>
#include <type_traits>
#include <unordered_map>

#include <dnnl.hpp>

#include "lib/core/aligned.hpp"
#include "lib/core/cpu.hpp"
#endif

namespace kvcodec {

#ifdef KVCODEC_ONEDNN

using dnnl::memory;

static memory::dim dim(size_t size) { return static_cast<memory::dim>(size); }

static memory::desc strided(size_t rows, size_t cols, memory::data_type type, size_t row_step,
                            size_t col_step) {
  return {{dim(rows), dim(cols)}, type, memory::dims{dim(row_step), dim(col_step)}};
}

static const dnnl::engine& cpu() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

static dnnl::primitive_attr attributes(bool add) {
  dnnl::primitive_attr result;
  // Memory of our own: primitives of one shape share what they are made of between threads.
  result.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (add) {
    dnnl::post_ops sum;
    sum.append_sum(1);
    result.set_post_ops(sum);
  }
  return result;
}

/// oneDNN takes mutable memory for what it only reads.
static memory memory_of(const memory::desc& desc, const void* data) {
  return {desc, cpu(), const_cast<void*>(data)};
}

std::string why_no_bf16() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512bf16") ? "" : "this processor has neither AVX512-BF16 nor AMX";
}

bool packs_floats() { return machine_simd() >= SimdLevel::avx512; }

namespace {

void check_processor() {
  if (const std::string reason = why_no_bf16(); !reason.empty())
    throw failed("a product in bf16, but {}", reason);
}

/// Calls what uses oneDNN. What that throws becomes an Error. A primitive must be described on one thread as well as run: one that
/// was described for several and runs on one sums in another order, or is broken (2.6.3: some products of one row throw).
template <class Call>
auto from_onednn(const Call& call) {
  const OnThisThread on_this_thread;
  try {
    return call();
  } catch (const dnnl::error& error) {
    throw failed("oneDNN: {}", error.what());
  }
}

template <class T>
constexpr memory::data_type kTypeOf =
    std::is_same_v<std::remove_const_t<T>, float> ? memory::data_type::f32 : memory::data_type::bf16;

/// Rows as they lie, or turned: columns for rows.
template <class T>
memory::desc desc_of(MatrixView<T> x, bool turned = false) {
  if (turned) return strided(x.cols(), x.rows(), kTypeOf<T>, 1, x.stride());
  return strided(x.rows(), x.cols(), kTypeOf<T>, x.stride(), 1);
}

dnnl::matmul::primitive_desc product(const memory::desc& x, const memory::desc& w, const memory::desc& out,
                                     bool add = false) {
  return {{x, w, out}, attributes(add), cpu()};
}

/// Products that one description serves have these in common. Steps are elements from a row, or of w a
/// column, to the next; those of w are 0 where it is packed.
struct Kind {
  memory::data_type type;
  size_t rows, inner, columns;
  size_t x_step, w_row_step, w_column_step, out_step;
  bool add;
  auto operator<=>(const Kind&) const = default;  // NOLINT(modernize-use-nullptr): of what it stands for
};

/// The products that a thread has described. oneDNN takes some 5 us to describe one, as long as a small product runs.
class Products {
 public:
  void run(const Kind& kind, const void* x, const memory& w, float* out) {
    auto place = described_.find(kind);
    if (place == described_.end()) place = describe(kind, w.get_desc());
    auto& [matmul, scratch_bytes, memories] = place->second;
    if (scratch_.size() < scratch_bytes) scratch_.resize(scratch_bytes);
    memories[DNNL_ARG_SRC].set_data_handle(const_cast<void*>(x));
    memories[DNNL_ARG_DST].set_data_handle(out);
    memories[DNNL_ARG_SCRATCHPAD].set_data_handle(scratch_.data());
    memories[DNNL_ARG_WEIGHTS] = w;
    matmul.execute(stream_, memories);
    stream_.wait();
  }

 private:
  struct Product {
    dnnl::matmul matmul;
    size_t scratch_bytes;
    std::unordered_map<int, memory> memories;
  };

  // Forward passes have a few hundred: blocks of attention differ in their width.
  static constexpr size_t kMax = 1024;

  std::map<Kind, Product>::iterator describe(const Kind& kind, const memory::desc& w) {
    if (described_.size() == kMax) described_.clear();
    const auto desc =
        product(strided(kind.rows, kind.inner, kind.type, kind.x_step, 1), w,
                strided(kind.rows, kind.columns, memory::data_type::f32, kind.out_step, 1), kind.add);
    const memory::desc scratch = desc.scratchpad_desc();
    Product made{dnnl::matmul(desc), scratch.get_size(), {}};
    made.memories = {{DNNL_ARG_SRC, memory_of(desc.src_desc(), nullptr)},
                     {DNNL_ARG_DST, memory_of(desc.dst_desc(), nullptr)},
                     {DNNL_ARG_SCRATCHPAD, memory_of(scratch, nullptr)}};
    return described_.emplace(kind, std::move(made)).first;
  }

  dnnl::stream stream_{cpu()};
  std::map<Kind, Product> described_;
  std::vector<std::byte> scratch_;
};

void run(const Kind& kind, const void* x, const memory& w, float* out) {
  thread_local Products products;
  products.run(kind, x, w, out);
}

}  // namespace

void gemm_bf16(MatrixView<const uint16_t> x, MatrixView<const uint16_t> w, Transpose op, bool add,
               MatrixView<float> out) {
  const bool turned = op == Transpose::yes;
  const size_t inner = turned ? w.cols() : w.rows(), columns = turned ? w.rows() : w.cols();
  if (x.cols() == 0 || x.cols() != inner || out.rows() != x.rows() || out.cols() != columns)
    throw failed("product of ({}, {}) and {}({}, {}) to ({}, {})", x.rows(), x.cols(),
                 turned ? "the transpose of " : "", w.rows(), w.cols(), out.rows(), out.cols());
  check_processor();
  if (out.rows() == 0 || out.cols() == 0) return;
  from_onednn([&] {
    const Kind kind{.type = kTypeOf<uint16_t>,
                    .rows = x.rows(),
                    .inner = inner,
                    .columns = columns,
                    .x_step = x.stride(),
                    .w_row_step = turned ? 1 : w.stride(),
                    .w_column_step = turned ? w.stride() : 1,
                    .out_step = out.stride(),
                    .add = add};
    run(kind, x.data(), memory_of(desc_of(w, turned), w.data()), out.data());
  });
}

struct PackedMatrix::Impl {
  memory::desc desc;                      // of the transpose
  size_t fixed_rows;                      // of the other matrix; 0: any number
  std::shared_ptr<std::byte> bytes = {};  // of several matrices together
  memory all = {};                        // the same, as products take it
};

namespace {

/// The product of x_rows rows and the transpose of a matrix of `shape`, w.
dnnl::matmul::primitive_desc packed_product(size_t x_rows, const memory::desc& w,
                                            const PackedMatrix::Shape& shape) {
  return product(strided(x_rows, shape.cols, w.data_type(), shape.cols, 1), w,
                 strided(x_rows, shape.rows, memory::data_type::f32, shape.rows, 1));
}

/// The order that oneDNN chooses for the transpose of a matrix. It goes by columns and inner dimension, whatever the rows of
/// the other matrix.
memory::desc packed_desc(memory::data_type type, const PackedMatrix::Shape& shape) {
  constexpr size_t kRows = 512;
  const memory::desc any({dim(shape.cols), dim(shape.rows)}, type, memory::format_tag::any);
  return packed_product(kRows, any, shape).weights_desc();
}

/// The number of rows that a product must always have for a row of it to be the same beside any others; 0: any number. With AMX oneDNN
/// chooses by the number of rows how it cuts the inner dimension, and makes a few short sums without AMX.
size_t fixed_rows(const memory::desc& packed, const PackedMatrix::Shape& shape) {
  constexpr size_t kRows = 64;
  const std::string_view kernel = packed_product(kRows, packed, shape).impl_info_str();
  return kernel.find("amx") == std::string_view::npos ? 0 : kRows;
}

/// The number of columns of a packed matrix that lie together, times what makes about 64 of them: a block to be set stays in the cache.
size_t columns_together(const memory::desc& desc) {
  constexpr size_t kAbout = 64;
  const dnnl_blocking_desc_t& order = desc.data.format_desc.blocking;
  size_t together = 1;
  for (int i = 0; i < order.inner_nblks; ++i)
    if (order.inner_idxs[i] == 1) together *= static_cast<size_t>(order.inner_blks[i]);
  return round_up(kAbout, together);
}

template <class T>
constexpr DType kElementsOf = std::is_same_v<T, float> ? DType::f32 : DType::bf16;

template <class T>
void set_rows(const PackedMatrix& packed, size_t first, MatrixView<const T> rows) {
  const size_t end = first + rows.rows(), step = packed.row_step();
  if (packed.elements() != kElementsOf<T> || rows.cols() != packed.cols() || end > packed.rows() ||
      rows.rows() == 0 || first % step != 0 || (end % step != 0 && end != packed.rows()))
    throw failed("rows {} to {} of {} {} to pack in ({}, {}) of {}", first, end, rows.cols(), kElementsOf<T>,
                 packed.rows(), packed.cols(), packed.elements());
  from_onednn([&] {
    const PackedMatrix::Impl& impl = packed.impl();
    memory::desc part = impl.desc.submemory_desc({dim(rows.cols()), dim(rows.rows())}, {0, dim(first)});
    // Parts of one shape differ in where they begin. Told apart by that, each would have oneDNN compile anew.
    std::byte* const begin = impl.bytes.get() + static_cast<size_t>(part.data.offset0) * sizeof(T);
    part.data.offset0 = 0;
    dnnl::stream stream(cpu());
    memory from = memory_of(desc_of(rows, true), rows.data()), to = memory_of(part, begin);
    dnnl::reorder(from, to).execute(stream, from, to);
    stream.wait();
  });
}

template <class T>
void run_packed(MatrixView<const T> x, const PackedMatrix& w, bool add, MatrixView<float> out) {
  from_onednn([&] {
    // One row may have any stride; oneDNN is told that there is no gap.
    const Kind kind{.type = kTypeOf<T>,
                    .rows = x.rows(),
                    .inner = w.cols(),
                    .columns = w.rows(),
                    .x_step = w.cols(),
                    .w_row_step = 0,
                    .w_column_step = 0,
                    .out_step = w.rows(),
                    .add = add};
    run(kind, x.data(), w.impl().all, out.data());
  });
}

template <class T>
void multiply_packed(MatrixView<const T> x, const PackedMatrix& w, bool add, MatrixView<float> out) {
  const bool gaps = !x.contiguous() || !out.contiguous();
  if (w.elements() != kElementsOf<T> || x.cols() != w.cols() || out.rows() != x.rows() ||
      out.cols() != w.rows() || gaps)
    throw failed("product of ({}, {}) of {} and the transpose of packed ({}, {}) of {} to ({}, {}){}",
                 x.rows(), x.cols(), kElementsOf<T>, w.rows(), w.cols(), w.elements(), out.rows(), out.cols(),
                 gaps ? " with gaps between rows" : "");
  if (out.rows() == 0) return;
  const size_t step = w.impl().fixed_rows > 0 ? w.impl().fixed_rows : x.rows(),
               whole = x.rows() / step * step;
  for (size_t first = 0; first < whole; first += step)
    run_packed(x.rows(first, step), w, add, out.rows(first, step));
  if (whole == x.rows()) return;
  // The others get rows of zeros behind them.
  Matrix<T> more(step, w.cols());
  Matrix<float> sums(step, w.rows());
  for (size_t i = whole; i < x.rows(); ++i) {
    std::ranges::copy(x.row(i), more.row(i - whole).begin());
    if (add) std::ranges::copy(out.row(i), sums.row(i - whole).begin());
  }
  run_packed<T>(more, w, add, sums);
  for (size_t i = whole; i < x.rows(); ++i) std::ranges::copy(sums.row(i - whole), out.row(i).begin());
}

}  // namespace

std::vector<PackedMatrix> PackedMatrix::of(DType elements, std::span<const Shape> shapes) {
  if (elements != DType::f32 && elements != DType::bf16) throw failed("a matrix of {} to pack", elements);
  if (elements == DType::bf16) check_processor();
  if (elements == DType::f32 && !packs_floats())
    throw failed("floats to pack, but this processor has no AVX-512");
  std::vector<PackedMatrix> matrices;
  std::vector<size_t> places;
  size_t bytes = 0;
  for (const Shape& shape : shapes) {
    if (shape.rows == 0 || shape.cols == 0)
      throw failed("a matrix of ({}, {}) to pack", shape.rows, shape.cols);
    PackedMatrix& matrix = matrices.emplace_back();
    matrix.elements_ = elements, matrix.shape_ = shape;
    from_onednn([&] {
      const memory::desc desc =
          packed_desc(elements == DType::f32 ? memory::data_type::f32 : memory::data_type::bf16, shape);
      matrix.row_step_ = columns_together(desc);
      matrix.impl_ = std::make_shared<Impl>(Impl{desc, fixed_rows(desc, shape)});
    });
    places.push_back(bytes);
    bytes += round_up(matrix.impl_->desc.get_size(), kCacheLine);
  }
  const auto storage = std::make_shared<UnsetVector<std::byte>>(bytes);
  for (size_t i = 0; i < matrices.size(); ++i) {
    Impl& packed = *matrices[i].impl_;
    packed.bytes = {storage, storage->data() + places[i]};
    // oneDNN writes zeros here where rows or columns are filled up.
    packed.all = from_onednn([&] { return memory_of(packed.desc, packed.bytes.get()); });
  }
  return matrices;
}

void PackedMatrix::set(size_t first, MatrixView<const float> rows) { set_rows(*this, first, rows); }
void PackedMatrix::set(size_t first, MatrixView<const uint16_t> rows) { set_rows(*this, first, rows); }

void gemm_packed(MatrixView<const float> x, const PackedMatrix& w, bool add, MatrixView<float> out) {
  multiply_packed(x, w, add, out);
}
void gemm_packed(MatrixView<const uint16_t> x, const PackedMatrix& w, bool add, MatrixView<float> out) {
  multiply_packed(x, w, add, out);
}

#else

std::string why_no_bf16() { return "this build has no oneDNN (libdnnl)"; }
bool packs_floats() { return false; }

void gemm_bf16(MatrixView<const uint16_t>, MatrixView<const uint16_t>, Transpose, bool, MatrixView<float>) {
  throw failed("a product in bf16, but {}", why_no_bf16());
}

struct PackedMatrix::Impl {};
std::vector<PackedMatrix> PackedMatrix::of(DType, std::span<const Shape>) {
  throw failed("matrices to pack, but {}", why_no_bf16());
}
void PackedMatrix::set(size_t, MatrixView<const float>) {}
void PackedMatrix::set(size_t, MatrixView<const uint16_t>) {}
void gemm_packed(MatrixView<const float>, const PackedMatrix&, bool, MatrixView<float>) {}
void gemm_packed(MatrixView<const uint16_t>, const PackedMatrix&, bool, MatrixView<float>) {}

#endif

}  // namespace kvcodec
