/* The part of libpmem that engines use, for a judge that cuts the power: see pmem.cpp. Names, flags and
 * semantics are libpmem's; this file is ours. */

#ifndef FARBANK_LIBPMEM_H
#define FARBANK_LIBPMEM_H

#include <stddef.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PMEM_FILE_CREATE (1 << 0)
#define PMEM_FILE_EXCL (1 << 1)
#define PMEM_FILE_SPARSE (1 << 2)
#define PMEM_FILE_TMPFILE (1 << 3)

#define PMEM_F_MEM_NODRAIN (1U << 0)
#define PMEM_F_MEM_NONTEMPORAL (1U << 1)
#define PMEM_F_MEM_TEMPORAL (1U << 2)
#define PMEM_F_MEM_WC (1U << 3)
#define PMEM_F_MEM_WB (1U << 4)
#define PMEM_F_MEM_NOFLUSH (1U << 5)

void* pmem_map_file(const char* path, size_t len, int flags, mode_t mode, size_t* mapped_lenp, int* is_pmemp);
int pmem_unmap(void* addr, size_t len);
int pmem_is_pmem(const void* addr, size_t len);

void pmem_flush(const void* addr, size_t len);
void pmem_drain(void);
void pmem_persist(const void* addr, size_t len);
int pmem_msync(const void* addr, size_t len);
int pmem_has_hw_drain(void);
int pmem_has_auto_flush(void);
void pmem_deep_flush(const void* addr, size_t len);
int pmem_deep_drain(const void* addr, size_t len);
int pmem_deep_persist(const void* addr, size_t len);

void* pmem_memcpy(void* to, const void* from, size_t len, unsigned flags);
void* pmem_memmove(void* to, const void* from, size_t len, unsigned flags);
void* pmem_memset(void* to, int byte, size_t len, unsigned flags);
void* pmem_memcpy_persist(void* to, const void* from, size_t len);
void* pmem_memmove_persist(void* to, const void* from, size_t len);
void* pmem_memset_persist(void* to, int byte, size_t len);
void* pmem_memcpy_nodrain(void* to, const void* from, size_t len);
void* pmem_memmove_nodrain(void* to, const void* from, size_t len);
void* pmem_memset_nodrain(void* to, int byte, size_t len);

const char* pmem_errormsg(void);

#ifdef __cplusplus
}
#endif

#endif
