// libpmem for the judge: a killed process loses what a power cut could destroy.
//
//   engine ──▶ private mapping           all reads and writes of the engine
//                  │ flush: copies each word with probability 1/2
//                  │ drain: copies all words that this thread flushed
//                  ▼
//              shared mapping            the file: the contents after a kill
//
// Eight bytes are atomic and nothing else is ordered, as in the contest's own judge. Stores that were never
// flushed never reach the file. A real cache may write back any line at any time, so bugs that depend on
// that are not found. With FARBANK_PMEM_CUT=N in its environment, the process kills itself at the start of
// its Nth drain.

#include "libpmem.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

namespace {

struct Mapping {
    char* working;
    char* durable;
    size_t bytes;
};

std::mutex mappings_lock;
std::vector<Mapping> mappings;
std::atomic<uint64_t> drains(0);
thread_local std::vector<std::pair<const char*, size_t>> flushed;

uint64_t chance() {
    static std::atomic<uint64_t> threads(1);
    static thread_local uint64_t state = threads.fetch_add(1) * 0x9e3779b97f4a7c15u ^ uint64_t(getpid());
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

// Copies the words of `len` bytes at `from` to the file: all of them, or each with probability 1/2.
void write_back(const char* from, size_t len, bool all) {
    Mapping in = {nullptr, nullptr, 0};
    {
        std::lock_guard<std::mutex> one(mappings_lock);
        for (const Mapping& mapping : mappings) {
            if (from >= mapping.working && from < mapping.working + mapping.bytes) {
                in = mapping;
            }
        }
    }
    if (in.working == nullptr || len == 0) {
        return;  // not one of our mappings but ordinary memory, for which libpmem also does nothing
    }
    size_t word = sizeof(uint64_t);
    size_t at = size_t(from - in.working) / word * word;
    size_t end = size_t(from - in.working) + len;
    for (; at < end && at < in.bytes; at += word) {
        if (all || chance() % 2 == 0) {
            uint64_t value = __atomic_load_n(reinterpret_cast<uint64_t*>(in.working + at), __ATOMIC_RELAXED);
            __atomic_store_n(reinterpret_cast<uint64_t*>(in.durable + at), value, __ATOMIC_RELAXED);
        }
    }
}

void* finish(void* to, size_t len, unsigned flags) {
    if (flags & PMEM_F_MEM_NOFLUSH) {
        return to;
    }
    pmem_flush(to, len);
    if (!(flags & PMEM_F_MEM_NODRAIN)) {
        pmem_drain();
    }
    return to;
}

uint64_t cut() {
    const char* text = getenv("FARBANK_PMEM_CUT");
    return text == nullptr ? 0 : strtoull(text, nullptr, 10);
}

}  // namespace

extern "C" {

void* pmem_map_file(const char* path, size_t len, int flags, mode_t mode, size_t* mapped_lenp, int* is_pmemp) {
    if (flags & PMEM_FILE_TMPFILE) {
        errno = ENOTSUP;
        return nullptr;
    }
    int create = flags & PMEM_FILE_CREATE ? O_CREAT : 0;
    int exclusive = flags & PMEM_FILE_EXCL ? O_EXCL : 0;
    int fd = open(path, O_RDWR | create | exclusive, mode);
    if (fd < 0) {
        return nullptr;
    }
    struct stat file;
    bool sized = create ? ftruncate(fd, off_t(len)) == 0 : fstat(fd, &file) == 0;
    size_t bytes = create ? len : size_t(file.st_size);
    void* durable = MAP_FAILED;
    void* working = MAP_FAILED;
    if (sized) {
        durable = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
        working = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
    }
    close(fd);
    if (durable == MAP_FAILED || working == MAP_FAILED) {
        return nullptr;
    }
    std::lock_guard<std::mutex> one(mappings_lock);
    mappings.push_back(Mapping{static_cast<char*>(working), static_cast<char*>(durable), bytes});
    if (mapped_lenp != nullptr) {
        *mapped_lenp = bytes;
    }
    if (is_pmemp != nullptr) {
        *is_pmemp = 1;
    }
    return working;
}

int pmem_unmap(void* addr, size_t) {
    std::lock_guard<std::mutex> one(mappings_lock);
    for (size_t n = 0; n < mappings.size(); ++n) {
        if (mappings[n].working == addr) {
            munmap(mappings[n].durable, mappings[n].bytes);
            munmap(mappings[n].working, mappings[n].bytes);
            mappings.erase(mappings.begin() + long(n));
            return 0;
        }
    }
    errno = EINVAL;
    return -1;
}

int pmem_is_pmem(const void*, size_t) { return 1; }
int pmem_has_hw_drain(void) { return 0; }
int pmem_has_auto_flush(void) { return 0; }

void pmem_flush(const void* addr, size_t len) {
    // Whole cache lines.
    uintptr_t from = uintptr_t(addr) / 64 * 64;
    size_t bytes = (uintptr_t(addr) + len + 63) / 64 * 64 - from;
    const char* line = reinterpret_cast<const char*>(from);
    flushed.emplace_back(line, bytes);
    write_back(line, bytes, false);
}

void pmem_drain(void) {
    static const uint64_t last = cut();
    if (drains.fetch_add(1) + 1 == last) {
        kill(getpid(), SIGKILL);
    }
    for (const std::pair<const char*, size_t>& range : flushed) {
        write_back(range.first, range.second, true);
    }
    flushed.clear();
}

void pmem_persist(const void* addr, size_t len) {
    pmem_flush(addr, len);
    pmem_drain();
}

int pmem_msync(const void* addr, size_t len) {
    pmem_persist(addr, len);
    return 0;
}

void pmem_deep_flush(const void* addr, size_t len) { pmem_flush(addr, len); }

int pmem_deep_drain(const void*, size_t) {
    pmem_drain();
    return 0;
}

int pmem_deep_persist(const void* addr, size_t len) {
    pmem_persist(addr, len);
    return 0;
}

void* pmem_memcpy(void* to, const void* from, size_t len, unsigned flags) {
    return finish(memcpy(to, from, len), len, flags);
}

void* pmem_memmove(void* to, const void* from, size_t len, unsigned flags) {
    return finish(memmove(to, from, len), len, flags);
}

void* pmem_memset(void* to, int byte, size_t len, unsigned flags) {
    return finish(memset(to, byte, len), len, flags);
}

void* pmem_memcpy_persist(void* to, const void* from, size_t len) { return pmem_memcpy(to, from, len, 0); }
void* pmem_memmove_persist(void* to, const void* from, size_t len) { return pmem_memmove(to, from, len, 0); }
void* pmem_memset_persist(void* to, int byte, size_t len) { return pmem_memset(to, byte, len, 0); }

void* pmem_memcpy_nodrain(void* to, const void* from, size_t len) {
    return pmem_memcpy(to, from, len, PMEM_F_MEM_NODRAIN);
}

void* pmem_memmove_nodrain(void* to, const void* from, size_t len) {
    return pmem_memmove(to, from, len, PMEM_F_MEM_NODRAIN);
}

void* pmem_memset_nodrain(void* to, int byte, size_t len) {
    return pmem_memset(to, byte, len, PMEM_F_MEM_NODRAIN);
}

const char* pmem_errormsg(void) { return strerror(errno); }

}
