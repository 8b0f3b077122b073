/* powerfail.c: models the content of the guest's persistent memory after a power cut. A TCG plugin for QEMU 7.2.
 *
 *     -plugin powerfail.so,img=PMEM,media=MEDIA,stats=STATS[,evict=PERCENT][,seed=N]
 *
  *   guest stores ──▶ PMEM   the file behind the NVDIMM: caches and media together, as the guest sees them
 *                     │
  *                     │ user code: lines written back and bytes stored around the cache, at the next fence
  *                     │            of the same processor; PERCENT of all other stores
  *                     │ kernel:    every store, immediately: the kernel is not under test
 *                     ▼
  *                   MEDIA  the content after QEMU is killed
 *
  * QEMU decodes clwb and similar instructions as no-ops without an address. So the program has to announce the
  * line by a load of one byte with the same operand directly before: mov (p),%al; clwb (p). A write-back without
  * that load is counted as an orphan, and makes the run invalid.
  *
  * The plugin watches nothing until a program in the guest executes ARM (arm.S). So the guest boots at full
  * speed, and the content of PMEM at that moment counts as durable.
  *
  * Fences of the kernel count too, as on a real processor: a thread that is moved to another processor between
  * its write-back and its fence has passed the scheduler's locked instructions.
  *
  * STATS is a shared mapping, so that it survives SIGKILL. Debian does not package QEMU's header for plugins, so
  * this file declares the functions that it uses. */
 #include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The plugin interface, version 1. */
#define EXPORT __attribute__((visibility("default")))
#define READ_AND_WRITE 3 /* QEMU 7.2 has a bug in callbacks for only one of the two */
typedef uint64_t plugin_id;
typedef uint32_t mem_info;
struct tb;
struct insn;
struct hwaddr;
extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct tb *));
extern void qemu_plugin_reset(plugin_id, void (*)(plugin_id));
extern size_t qemu_plugin_tb_n_insns(const struct tb *);
extern struct insn *qemu_plugin_tb_get_insn(const struct tb *, size_t);
extern const void *qemu_plugin_insn_data(const struct insn *);
extern size_t qemu_plugin_insn_size(const struct insn *);
extern uint64_t qemu_plugin_insn_vaddr(const struct insn *);
extern void qemu_plugin_register_vcpu_insn_exec_cb(struct insn *, void (*)(unsigned, void *), int, void *);
extern void qemu_plugin_register_vcpu_mem_cb(struct insn *, void (*)(unsigned, mem_info, uint64_t, void *), int, int,
                                             void *);
extern unsigned qemu_plugin_mem_size_shift(mem_info);
extern bool qemu_plugin_mem_is_store(mem_info);
extern struct hwaddr *qemu_plugin_get_hwaddr(mem_info, uint64_t);
extern bool qemu_plugin_hwaddr_is_io(const struct hwaddr *);
EXPORT int qemu_plugin_version = 1;

enum { WORD = 8, LINE = 64, PAGE = 4096, CPUS = 64 };
static const unsigned char ARM[] = {0x0f, 0x1f, 0x80, 'F', 'A', 'R', 'B'}; /* nopl 0x42524146(%rax) */

/* The content of STATS. guest.sh prints the fields in this order. */
struct stats {
    uint64_t armed, user_stores, nt_stores, flushes, fences, kernel_stores, dirty_lines, orphans;
};
static struct stats *stats;

static const char *img_path;
static unsigned char *img, *media, *dirty;
static size_t len;
static unsigned evict;
/* `now` numbers the copies taken from the guest. `taken` is the number of the copy in each word of the media, so
 * that an older copy never replaces a newer one. */
static uint64_t now, *taken;
static uint64_t rng = 88172645463325252ull;

/* Bytes that were written back and will reach the media at the next fence. */
struct pending {
    uint64_t taken;
    uint32_t at, len;
    unsigned char bytes[LINE];
};
/* State of a processor: pending bytes, the last load of one byte, and the address of the instruction after it. */
struct cpu {
    struct pending *pending;
    size_t count, room;
    uint64_t next_pc;
    const unsigned char *loaded;
};
static struct cpu cpus[CPUS];

static volatile char locked;
static void lock(void) {
    while (__atomic_test_and_set(&locked, __ATOMIC_ACQUIRE)) __builtin_ia32_pause();
}
static void unlock(void) { __atomic_clear(&locked, __ATOMIC_RELEASE); }

static bool evicted(void) {
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return evict && (rng >> 20) % 100 < evict;
}

static void die(const char *why) {
    perror(why);
    _exit(1);
}

/* ---- transfer of bytes to the media ---- */

static void set_dirty(uint32_t at) {
    if (!dirty[at / LINE]) stats->dirty_lines++;
    dirty[at / LINE] = 1;
}

/* Copies whole words of one line to the media. */
static void to_media(uint32_t at, const unsigned char *bytes, uint32_t n, uint64_t when) {
    size_t line = (size_t)at / LINE * LINE;
    for (uint32_t i = 0; i < n; i += WORD) {
        if (taken[(at + i) / WORD] > when) continue;
        taken[(at + i) / WORD] = when;
        memcpy(media + at + i, bytes + i, WORD);
    }
    if (dirty[at / LINE] && !memcmp(media + line, img + line, LINE)) {
        dirty[at / LINE] = 0;
        stats->dirty_lines--;
    }
}

static void on_its_way(struct cpu *cpu, uint32_t at, uint32_t n) {
    if (cpu->count == cpu->room) {
        cpu->room = cpu->room ? 2 * cpu->room : 1024;
        cpu->pending = realloc(cpu->pending, cpu->room * sizeof *cpu->pending);
        if (!cpu->pending) die("powerfail: pending stores");
    }
    struct pending *p = &cpu->pending[cpu->count++];
    p->at = at, p->len = n, p->taken = ++now;
    memcpy(p->bytes, img + at, n);
}

/* Returns the host address of an access, if it is in the persistent memory. */
static const unsigned char *in_img(mem_info info, uint64_t va) {
    struct hwaddr *hw = qemu_plugin_get_hwaddr(info, va);
    if (!hw || qemu_plugin_hwaddr_is_io(hw)) return NULL;
    const unsigned char *host = *(unsigned char **)((char *)hw + 8); /* struct qemu_plugin_hwaddr of 7.2 */
    return host >= img && host < img + len ? host : NULL;
}

/* ---- callbacks of a watched guest ---- */

enum store { KERNEL, THROUGH, AROUND };

static void word_stored(unsigned cpu, uint32_t at, enum store what) {
    switch (what) {
    case KERNEL:
        stats->kernel_stores++;
        to_media(at, img + at, WORD, ++now);
        break;
    case AROUND:
        stats->nt_stores++;
        set_dirty(at);
        on_its_way(&cpus[cpu % CPUS], at, WORD);
        break;
    case THROUGH:
        stats->user_stores++;
        set_dirty(at);
        if (evicted()) to_media(at / LINE * LINE, img + at / LINE * LINE, LINE, ++now);
    }
}

static void on_store(unsigned cpu, mem_info info, uint64_t va, void *what) {
    if (!qemu_plugin_mem_is_store(info)) return;
    const unsigned char *host = in_img(info, va);
    if (!host) return;
    uint32_t from = host - img, to = from + (1u << qemu_plugin_mem_size_shift(info));
    lock();
    for (uint32_t at = from / WORD * WORD; at < to; at += WORD) word_stored(cpu, at, (uintptr_t)what);
    unlock();
}

static void on_byte_load(unsigned cpu, mem_info info, uint64_t va, void *next_pc) {
    cpus[cpu % CPUS].next_pc = (uintptr_t)next_pc;
    cpus[cpu % CPUS].loaded = in_img(info, va);
}

static void on_flush(unsigned index, void *pc) {
    struct cpu *cpu = &cpus[index % CPUS];
    lock();
    if (cpu->next_pc != (uintptr_t)pc) {
        stats->orphans++;
    } else if (cpu->loaded) {
        stats->flushes++;
        on_its_way(cpu, (cpu->loaded - img) / LINE * LINE, LINE);
    }
    unlock();
    cpu->next_pc = 0;
}

static void on_fence(unsigned index, void *unused) {
    (void)unused;
    struct cpu *cpu = &cpus[index % CPUS];
    if (!cpu->count) return;
    lock();
    stats->fences++;
    for (size_t i = 0; i < cpu->count; i++) {
        const struct pending *p = &cpu->pending[i];
        to_media(p->at, p->bytes, p->len, p->taken);
    }
    cpu->count = 0;
    unlock();
}

/* ---- classification of instructions ---- */

enum kind { OTHER, FLUSH, FENCE, NT_STORE, BYTE_LOAD };

static bool is_prefix(unsigned char byte) {
    return memchr("\x66\xf2\xf3\xf0\x2e\x36\x3e\x26\x64\x65", byte, 10) != NULL;
}

/* Classifies an instruction of opcode map 0F. i is the index of the opcode. */
static enum kind kind_of_0f(const unsigned char *p, size_t n, size_t i, bool operand_size) {
    if (p[i] == 0xc3 || p[i] == 0xe7 || p[i] == 0x2b) return NT_STORE; /* movnti, movntdq, movntps */
    if (p[i] != 0xae || i + 1 >= n) return OTHER;
    int reg = p[i + 1] >> 3 & 7, is_register = p[i + 1] >> 6 == 3;
    if (is_register) return reg >= 6 ? FENCE : OTHER;          /* mfence, sfence */
    if (reg == 7 || (reg == 6 && operand_size)) return FLUSH; /* clflush, clflushopt; clwb */
    return OTHER;
}

static enum kind kind_of(const struct insn *insn) {
    const unsigned char *p = qemu_plugin_insn_data(insn);
    size_t n = qemu_plugin_insn_size(insn), i = 0;
    bool operand_size = false;
    for (; i < n && is_prefix(p[i]); i++) {
        if (p[i] == 0xf0) return FENCE; /* lock prefix */
        operand_size |= p[i] == 0x66;
    }
    if (i < n && (p[i] & 0xf0) == 0x40) i++; /* REX */
    if (i + 1 >= n) return OTHER;
    if (p[i] == 0x0f) return kind_of_0f(p, n, i + 1, operand_size);
    if (p[i] == 0xc5 && i + 2 < n) return kind_of_0f(p, n, i + 2, false);
    if (p[i] == 0xc4 && i + 3 < n && (p[i + 1] & 31) == 1) return kind_of_0f(p, n, i + 3, false);
    return p[i] == 0x8a && p[i + 1] >> 6 != 3 ? BYTE_LOAD : OTHER;
}

static bool is_user(const struct insn *insn) { return !(qemu_plugin_insn_vaddr(insn) >> 63); }

static void watch(struct insn *insn) {
    uint64_t pc = qemu_plugin_insn_vaddr(insn);
    bool user = is_user(insn);
    enum kind kind = kind_of(insn);
    if (kind == FENCE) qemu_plugin_register_vcpu_insn_exec_cb(insn, on_fence, 0, NULL);
    if (user && kind == FLUSH) {
        qemu_plugin_register_vcpu_insn_exec_cb(insn, on_flush, 0, (void *)pc);
    } else if (user && kind == BYTE_LOAD) {
        void *next = (void *)(pc + qemu_plugin_insn_size(insn));
        qemu_plugin_register_vcpu_mem_cb(insn, on_byte_load, 0, READ_AND_WRITE, next);
    } else {
        enum store store = !user ? KERNEL : kind == NT_STORE ? AROUND : THROUGH;
        qemu_plugin_register_vcpu_mem_cb(insn, on_store, 0, READ_AND_WRITE, (void *)(uintptr_t)store);
    }
}

static void on_watched_block(plugin_id id, struct tb *tb) {
    (void)id;
    for (size_t i = 0; i < qemu_plugin_tb_n_insns(tb); i++) watch(qemu_plugin_tb_get_insn(tb, i));
}

/* ---- arming ---- */

/* Returns the address of QEMU's own mapping of PMEM. */
static unsigned char *find_img(void) {
    char line[4096], path[4000];
    unsigned long from, to;
    unsigned char *found = NULL;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %*s %*s %*s %*s %3999s", &from, &to, path) == 3 && !strcmp(path, img_path) &&
            to - from >= len)
            found = (unsigned char *)from;
    if (maps) fclose(maps);
    return found;
}

/* Called while all processors are stopped and no translated code is left. */
static void arm(plugin_id id) {
    img = find_img();
    if (!img) die("powerfail: the memory's file is not mapped");
    for (size_t at = 0; at < len; at += PAGE)
        if (memcmp(media + at, img + at, PAGE)) memcpy(media + at, img + at, PAGE);
    stats->armed = 1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_watched_block);
}

static plugin_id own_id;
static void on_arm(unsigned cpu, void *unused) {
    (void)cpu, (void)unused;
    static bool asked;
    if (!__atomic_test_and_set(&asked, __ATOMIC_RELAXED)) qemu_plugin_reset(own_id, arm);
}

static void on_block(plugin_id id, struct tb *tb) {
    (void)id;
    for (size_t i = 0; i < qemu_plugin_tb_n_insns(tb); i++) {
        struct insn *insn = qemu_plugin_tb_get_insn(tb, i);
        if (qemu_plugin_insn_size(insn) == sizeof ARM && !memcmp(qemu_plugin_insn_data(insn), ARM, sizeof ARM))
            qemu_plugin_register_vcpu_insn_exec_cb(insn, on_arm, 0, NULL);
    }
}

/* ---- starting ---- */

static void *map_file(const char *path, size_t bytes) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || ftruncate(fd, bytes)) return NULL;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return p == MAP_FAILED ? NULL : p;
}

static const char *value_of(const char *argument, const char *name) {
    size_t n = strlen(name);
    return strncmp(argument, name, n) ? NULL : argument + n;
}

EXPORT int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv) {
    const char *media_path = NULL, *stats_path = NULL, *v;
    struct stat file;
    (void)info;
    for (int i = 0; i < argc; i++) {
        if ((v = value_of(argv[i], "img="))) img_path = strdup(v);
        if ((v = value_of(argv[i], "media="))) media_path = v;
        if ((v = value_of(argv[i], "stats="))) stats_path = v;
        if ((v = value_of(argv[i], "evict="))) evict = atoi(v);
        if ((v = value_of(argv[i], "seed="))) rng ^= strtoull(v, NULL, 0) * 0x9e3779b97f4a7c15ull;
    }
    if (!img_path || !media_path || !stats_path || stat(img_path, &file)) {
        fprintf(stderr, "powerfail: img=, media= and stats= are required, and the file img must exist\n");
        return 1;
    }
    len = file.st_size;
    media = map_file(media_path, len);
    stats = map_file(stats_path, PAGE);
    dirty = calloc(len / LINE, 1);
    taken = calloc(len / WORD, sizeof *taken);
    if (!media || !stats || !dirty || !taken) {
        perror("powerfail");
        return 1;
    }
    own_id = id;
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_block);
    return 0;
}
