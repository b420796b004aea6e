#include "formats/io/output.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/io/byte_source.hpp"

namespace kvcodec {

/// Copies everything from one descriptor to another. Returns 0, or the errno of the side that failed (`writing` tells which).
static int copy_all(int from, int to, bool& writing) {
  std::vector<std::byte> buffer(size_t{1} << 20);
  for (;;) {
    // Bytes of a pipe are passed on at once.
    const ssize_t got = uninterrupted([&] { return ::read(from, buffer.data(), buffer.size()); });
    writing = got > 0;
    if (got <= 0) return got < 0 ? errno : 0;
    if (const int error = write_next(to, std::span(buffer).first(static_cast<size_t>(got)))) return error;
  }
}

/// Standard input as a seekable file, made once: it can be read only once, but several callers ask for it.
static const Descriptor& standard_input() {
  static const Descriptor copy = [] {
    if (::isatty(STDIN_FILENO))
      throw usage_error("standard input is a terminal; an HDF5 file is wanted there");
    Descriptor file = open_unnamed(temporary_folder(), "kvcodec-stdin", "standard input");
    bool writing = false;
    const int error = copy_all(STDIN_FILENO, file.get(), writing);
    if (error)
      throw failed("standard input: {} {}: {}", writing ? "cannot be copied to" : "cannot be read into",
                   temporary_folder().string(), std::strerror(error));
    return file;
  }();
  return copy;
}

OutputFile::OutputFile(std::string target, bool overwrite, LeftOver* left_over)
    : target_(std::move(target)), overwrite_(overwrite) {
  if (is_far(target_))
    throw usage_error("{}: an output is written to a file here first; name it with -o, and the URL with --to",
                      shown_name(target_));
  if (target_ == "-") {
    if (::isatty(STDOUT_FILENO))
      throw usage_error("standard output is a terminal; name a file with -o, or send the output to one");
    target_ = "standard output";
    kind_ = Kind::standard_output;
    temporary_ = std::make_unique<TemporaryFile>(temporary_folder(), "kvcodec-stdout", 0600, target_);
    return;
  }
  if (target_.empty()) throw usage_error("the name of the output file is empty");
  // Replacing a symbolic link would detach it from its target.
  final_ = behind_links(target_);
  struct stat status = {};
  const bool is_there = ::stat(final_.c_str(), &status) == 0;
  if (is_there) {
    if (S_ISDIR(status.st_mode)) throw failed("{}: {}", target_, std::strerror(EISDIR));
    if (!S_ISREG(status.st_mode)) {  // a device or a pipe is written to, never replaced
      kind_ = Kind::special;
      temporary_ = std::make_unique<TemporaryFile>(temporary_folder(), "kvcodec-output", 0600, target_);
      return;
    }
    if (!overwrite_) throw usage_error("{}: exists already; --overwrite replaces it", target_);
  } else if (errno != ENOENT) {  // such as circular links
    throw not_written(target_);
  } else if (!overwrite_ && final_ != target_) {
    // The name exists, and the user may not know where it leads.
    throw usage_error("{}: is a symbolic link to {}, which does not exist; --overwrite makes that file",
                      target_, final_.string());
  }
  refuse_false_journal(final_, target_);
  LeftOver own;
  (left_over ? left_over : &own)->remove_of(final_);
  temporary_ = std::make_unique<TemporaryFile>(final_, is_there ? status.st_mode & 0777 : 0666, target_);
  if (is_there) copy_permissions(path(), status);
}

void OutputFile::commit() {
  if (committed_) throw internal_error("{}: committed twice", target_);
  if (in_place_) {
    in_place_->commit();
  } else if (kind_ == Kind::regular) {
    temporary_->sync();
    if (replaced_ && state_of(final_) != replaced_) throw changed_meanwhile(target_);
    // The journal of the replaced file, which readers do not take for that of the new one, is removed after the file: the new
    // one is held until then, so that no run adds to it and leaves a journal of its own.
    std::optional<HeldFile> held;
    if (state_of(journal_of(final_))) held.emplace(path().string(), [] {});
    // Another process may have made the file since this run began.
    temporary_->take_name(final_, overwrite_);
    if (held) remove_journal(final_);
    sync_folder_of(final_, target_);
  } else {
    copy_to_stream();
  }
  committed_ = true;
}

void OutputFile::copy_to_stream() {
  const Descriptor from(::open(path().c_str(), O_RDONLY | O_CLOEXEC));
  if (!from) throw failed("{}: {}", path().string(), std::strerror(errno));
  Descriptor opened;
  if (kind_ == Kind::special) {
    opened = Descriptor(::open(final_.c_str(), O_WRONLY | O_CLOEXEC));
    if (!opened) throw not_written(target_);
  } else {
    std::fflush(stdout);
  }
  bool writing = false;
  const int error = copy_all(from.get(), opened ? opened.get() : STDOUT_FILENO, writing);
  if (error) throw not_written(target_, error);
  if (opened && !opened.close()) throw not_written(target_);
  temporary_->remove();
}

InputFile::InputFile(std::string name) : name_(std::move(name)) {
  if (is_far(name_)) {
    far_ = FarFile::open(name_);
    name_ = path_ = far_->name();
    return;
  }
  if (name_ == "-") {
    name_ = "standard input";
    file_ = Descriptor(::dup(standard_input().get()));
    if (!file_) throw failed("standard input: {}", std::strerror(errno));
    path_ = fmt::format("/proc/self/fd/{}", descriptor());
  } else {
    path_ = name_;
    // O_NONBLOCK: opening a named pipe would wait for a writer.
    file_ = Descriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!file_) throw bad_input("{}: {}", name_, std::strerror(errno));
  }
  struct stat status = {};
  if (::fstat(descriptor(), &status) != 0) throw bad_input("{}: {}", name_, std::strerror(errno));
  if (S_ISDIR(status.st_mode)) throw bad_input("{}: is a folder; an HDF5 file is wanted here", name_);
  if (!S_ISREG(status.st_mode))
    throw bad_input("{}: is not a regular file; give '-' to read from a pipe", name_);
}

}  // namespace kvcodec
