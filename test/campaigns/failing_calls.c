// Preloaded into a program, it makes one call of the C library fail, as a full disk, a broken one or too little memory would.
//   FAIL_CALL   write, pwrite, fsync, rename, ftruncate, unlink, open, fcntl (locks), mmap, malloc (with calloc and realloc) or new (what
//               C++ allocates); only calls by that name count
//   FAIL_CHILD  set: only those of processes that the program forks
//   FAIL_AT     which call of it fails, from 1 on; with FAIL_ON=1 all later ones too
//   FAIL_KILL   set: the program is killed there instead, before the call is made
//   FAIL_SAID   a file that is made when a call did fail
// A call that is too far on is never reached, and nothing fails.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);

static atomic_long calls;
static long fail_at = -1;
static int fail_on, kills, began;
static const char *wanted, *said;
static pid_t parent;  // whose calls do not count, or 0
static _Thread_local int in_new;

static int (*main_of_program)(int, char**, char**);

// Calls count from main() on: what happens while the program is loaded is not its own.
static int counted_main(int count, char** words, char** environment) {
  const char* at = getenv("FAIL_AT");
  wanted = getenv("FAIL_CALL"), said = getenv("FAIL_SAID");
  fail_on = getenv("FAIL_ON") != NULL;
  kills = getenv("FAIL_KILL") != NULL;
  parent = getenv("FAIL_CHILD") ? getpid() : 0;
  fail_at = at && wanted ? atol(at) : -1;
  began = 1;
  return main_of_program(count, words, environment);
}

int __libc_start_main(int (*main)(int, char**, char**), int count, char** words, void (*init)(void), void (*fini)(void),
                      void (*loader)(void), void* stack_end) {
  main_of_program = main;
  int (*start)(int (*)(int, char**, char**), int, char**, void (*)(void), void (*)(void), void (*)(void), void*) =
      dlsym(RTLD_NEXT, "__libc_start_main");
  return start(counted_main, count, words, init, fini, loader, stack_end);
}

static int fails(const char* call) {
  if (!began || fail_at < 0 || strcmp(call, wanted) != 0 || getpid() == parent) return 0;
  const long number = atomic_fetch_add(&calls, 1) + 1;
  if (number < fail_at || (number > fail_at && !fail_on)) return 0;
  if (said) {
    const long file = syscall(SYS_openat, AT_FDCWD, said, O_WRONLY | O_CREAT, 0600);
    if (file >= 0) syscall(SYS_close, file);
  }
  if (kills) raise(SIGKILL);
  return 1;
}

static int with_error(int error) {
  errno = error;
  return -1;
}

void* malloc(size_t size) {
  const int of_new = in_new;
  in_new = 0;  // where nothing is found an exception leaves operator new
  return fails("malloc") || (of_new && fails("new")) ? (errno = ENOMEM, NULL) : __libc_malloc(size);
}
// operator new, which asks malloc and throws where there is nothing.
void* _Znwm(size_t size) {
  static void* (*from_library)(size_t);
  if (!from_library) from_library = (void* (*)(size_t))dlsym(RTLD_NEXT, "_Znwm");
  // A program in C, such as Python, has that library behind one that it loaded for itself.
  if (!from_library) from_library = (void* (*)(size_t))dlsym(dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD), "_Znwm");
  in_new = 1;
  return from_library(size);
}
void* calloc(size_t count, size_t size) {
  return fails("malloc") ? (errno = ENOMEM, NULL) : __libc_calloc(count, size);
}
void* realloc(void* place, size_t size) {
  return fails("malloc") ? (errno = ENOMEM, NULL) : __libc_realloc(place, size);
}

ssize_t write(int file, const void* bytes, size_t size) {
  // Messages must get out.
  if (file > 2 && fails("write")) return with_error(ENOSPC);
  return syscall(SYS_write, file, bytes, size);
}
ssize_t pwrite(int file, const void* bytes, size_t size, off_t at) {
  return fails("pwrite") ? with_error(ENOSPC) : syscall(SYS_pwrite64, file, bytes, size, at);
}
ssize_t pwrite64(int file, const void* bytes, size_t size, off_t at) { return pwrite(file, bytes, size, at); }
int fsync(int file) { return fails("fsync") ? with_error(EIO) : (int)syscall(SYS_fsync, file); }
int fdatasync(int file) { return fails("fsync") ? with_error(EIO) : (int)syscall(SYS_fdatasync, file); }
int rename(const char* from, const char* to) {
  return fails("rename") ? with_error(EIO) : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}
int unlink(const char* path) {
  return fails("unlink") ? with_error(EIO) : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}
int ftruncate(int file, off_t size) {
  return fails("ftruncate") ? with_error(ENOSPC) : (int)syscall(SYS_ftruncate, file, size);
}
int ftruncate64(int file, off_t size) { return ftruncate(file, size); }
int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
  va_end(more);
  return fails("open") ? with_error(EMFILE) : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
  va_end(more);
  return open(path, flags, mode);
}
int fcntl(int file, int command, ...) {
  va_list more;
  va_start(more, command);
  void* const argument = va_arg(more, void*);
  va_end(more);
  return command == F_OFD_SETLK && fails("fcntl") ? with_error(ENOLCK) : (int)syscall(SYS_fcntl, file, command, argument);
}
int fcntl64(int file, int command, ...) {
  va_list more;
  va_start(more, command);
  void* const argument = va_arg(more, void*);
  va_end(more);
  return fcntl(file, command, argument);
}
void* mmap(void* place, size_t size, int protection, int flags, int file, off_t at) {
  if (fails("mmap")) return errno = ENOMEM, MAP_FAILED;
  return (void*)syscall(SYS_mmap, place, size, protection, flags, file, at);
}
void* mmap64(void* place, size_t size, int protection, int flags, int file, off_t at) {
  return mmap(place, size, protection, flags, file, at);
}
