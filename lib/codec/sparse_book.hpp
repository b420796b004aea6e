// Books of type `dictionary`: what train-dict learns and the codec `sparse` needs (FORMAT.md, "dictionary").
//
// Parameters: all of TrainOptions by the names of its fields (atoms, sparsity, layer-group, signal,
// normalize, center, …), and num-layers, heads, head-dim, width, source. Arrays, for each side ("key",
// "value"):
//   <side>/atoms         f32 [atoms, width]                     rows of norm 1
//     with atom-type i8  u8  [atoms, width]                     levels, 128 added
//   <side>/atom_scale    f32 [atoms]                            with atom-type i8: rows times this: norm 1
//   <side>/layer_scale   f32 [num-layers]                       with normalize layer
//   <side>/channel_mean  f32 [num-layers, heads, head-dim]      with center channel
//   training/<side>/loss             f64 [steps]         training/<side>/replaced       u32 [steps]
//   training/<side>/validation       f64 [validations]   training/<side>/usage          u64 [atoms]
//   training/<side>/adam_mean, …/adam_variance    f32 [atoms, width]                     with optimizer adam
//   training/<side>/coefficient_products          f32 [atoms, atoms]                     with online, mod
//   training/<side>/signal_products               f32 [atoms, width]                     likewise
//   training/<side>/seconds          f64 [steps]
//   training/<side>/stable           u8  [1]                    1: stopped because the loss was stable
//   training/<side>/atoms            f32 [atoms, width]         with atom-type i8: before they were rounded
#pragma once

#include <string>

#include "lib/codec/book.hpp"
#include "lib/codec/codec.hpp"
#include "lib/sparse/dictionary.hpp"
#include "lib/sparse/train.hpp"

namespace kvcodec {

struct SparseBook {
  TrainOptions options;  ///< atom_type: how to_book keeps the atoms, or how they were kept
  int num_layers = 0, heads = 0, head_dim = 0;  ///< of the model
  std::string source;                           ///< identifies the data it was learned from

  struct OneSide {
    Dictionary dictionary;
    TrainState training;
  };
  OneSide key, value;

  OneSide& of(Side side) { return side == Side::key ? key : value; }
  const OneSide& of(Side side) const { return side == Side::key ? key : value; }
  SignalLayout layout() const { return options.layout(heads, head_dim); }
};

/// Atoms are brought to norm 1 on the way. With atom-type i8 the training record keeps them as they are too.
Book to_book(SparseBook sparse);

/// Checks everything: type, parameters, shapes, norms, finite values. Throws Error(bad_input) naming the
/// array. with_training: also reads the training record, which must then be there, and the atoms are those
/// that training goes on with; else it stays empty, and the atoms are those to code with.
SparseBook sparse_book_from(const Book& book, bool with_training);

}  // namespace kvcodec
