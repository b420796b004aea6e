#include "cuda/dictionary_step.hpp"
#include "cuda/stub.hpp"

namespace kvcodec::cuda {

std::unique_ptr<TrainingEngine> make_training_engine(const TrainOptions&, size_t) {
  throw built_without_cuda("training of dictionaries");
}
void train_dictionary(const SignalSource&, const TrainOptions&, Dictionary&, TrainState&, const Progress&) {
  throw built_without_cuda("training of dictionaries");
}

}  // namespace kvcodec::cuda
