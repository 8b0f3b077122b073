//! A faulty plug-in for tests: a map behind a lock, in Rust. It returns bytes that are not valid Rust bools, and ends
//! its process in the way that FARBANK_FAULT selects. Without --cfg it has PiBench's interface, with --cfg study the
//! study's, and with --cfg first that of the study's first version.
//!
//!   rustc --edition 2024 --crate-type cdylib --cap-lints allow -o faulty.so example/faulty.rs

#[path = "../src/abi.rs"]
mod abi;

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint};
use std::ptr;
use std::sync::Mutex;

use abi::{Functions, HashFunctions, HashTable, Tree, TreeOptions};

/// Number of keys from which an insert ends the process.
const LAST: usize = 300;

static MAP: Mutex<Option<HashMap<u64, u64>>> = Mutex::new(None);
/// Thread numbers that the caller has announced.
static THREADS: Mutex<Vec<c_int>> = Mutex::new(Vec::new());

unsafe fn word(at: *const c_char) -> u64 {
    // SAFETY: keys and values have eight bytes.
    unsafe { at.cast::<u64>().read_unaligned() }
}

fn with<T>(op: impl FnOnce(&mut HashMap<u64, u64>) -> T) -> T {
    op(MAP.lock().unwrap().get_or_insert_default())
}

fn end_if_asked(inserts: usize) {
    match std::env::var("FARBANK_FAULT").as_deref() {
        Ok(_) if inserts < LAST => {}
        Ok("abort") => std::process::abort(),
        // SAFETY: deliberately unsound: the test requests a crash.
        Ok("segv") => unsafe { ptr::null_mut::<u64>().write_volatile(1) },
        Ok("exit") => std::process::exit(0),
        Ok("hang") => loop {
            std::thread::sleep(std::time::Duration::from_secs(1));
        },
        _ => {}
    }
}

/// Returns a C++ `bool` as a byte: every byte other than 0 is true.
fn answer(done: bool) -> u8 {
    if done { 0xfe } else { 0 }
}

unsafe fn find_in(key: *const c_char, out: *mut c_char) -> u8 {
    // SAFETY: the caller guarantees it.
    let key = unsafe { word(key) };
    let found = with(|map| map.get(&key).copied());
    if let Some(value) = found {
        // SAFETY: there is room for eight bytes.
        unsafe { out.cast::<u64>().write_unaligned(value) };
    }
    answer(found.is_some())
}

unsafe fn insert_in(key: *const c_char, value: *const c_char) -> u8 {
    // SAFETY: the caller guarantees it.
    let (key, value) = unsafe { (word(key), word(value)) };
    let (done, len) = with(|map| {
        let len = map.len();
        map.entry(key).or_insert(value);
        (map.len() > len, map.len())
    });
    end_if_asked(len);
    answer(done)
}

unsafe fn update_in(key: *const c_char, value: *const c_char) -> u8 {
    // SAFETY: the caller guarantees it.
    let (key, value) = unsafe { (word(key), word(value)) };
    answer(with(|map| map.get_mut(&key).map(|old| *old = value)).is_some())
}

unsafe fn remove_in(key: *const c_char) -> u8 {
    // SAFETY: the caller guarantees it.
    let key = unsafe { word(key) };
    answer(with(|map| map.remove(&key)).is_some())
}

/// The virtual functions, without the fields before them, which are never read.
static TREE: Functions = Functions {
    destroy: tree_gone,
    delete: tree_gone,
    find: tree_find,
    insert: tree_insert,
    update: tree_update,
    remove: tree_remove,
    scan: tree_scan,
};

unsafe extern "C-unwind" fn tree_gone(_: *mut Tree) {}

unsafe extern "C-unwind" fn tree_find(
    _: *mut Tree,
    key: *const c_char,
    _: usize,
    out: *mut c_char,
) -> u8 {
    unsafe { find_in(key, out) }
}

unsafe extern "C-unwind" fn tree_insert(
    _: *mut Tree,
    key: *const c_char,
    _: usize,
    value: *const c_char,
    _: usize,
) -> u8 {
    unsafe { insert_in(key, value) }
}

unsafe extern "C-unwind" fn tree_update(
    _: *mut Tree,
    key: *const c_char,
    _: usize,
    value: *const c_char,
    _: usize,
) -> u8 {
    unsafe { update_in(key, value) }
}

unsafe extern "C-unwind" fn tree_remove(_: *mut Tree, key: *const c_char, _: usize) -> u8 {
    unsafe { remove_in(key) }
}

unsafe extern "C-unwind" fn tree_scan(
    _: *mut Tree,
    _: *const c_char,
    _: usize,
    _: c_int,
    _: *mut *mut c_char,
) -> c_int {
    -1
}

static HASH: HashFunctions = HashFunctions {
    thread_ini: hash_thread,
    before_destroy: [ptr::null(); 2],
    destroy: hash_gone,
    delete: hash_gone,
    before_find: [ptr::null(); 3],
    find: hash_find,
    insert: hash_insert,
    before_update: ptr::null(),
    update: hash_update,
    remove: hash_remove,
    after_remove: [ptr::null(); 2],
};

unsafe extern "C-unwind" fn hash_thread(_: *mut HashTable, number: c_int) {
    THREADS.lock().unwrap().push(number);
}

/// Aborts if the caller passes a thread number that is out of range or was not announced.
fn check(number: c_uint) {
    let told = THREADS.lock().unwrap().contains(&(number as c_int));
    if number >= 2 || !told {
        eprintln!("thread number {number} was not announced by thread_ini");
        std::process::abort();
    }
}

unsafe extern "C-unwind" fn hash_gone(_: *mut HashTable) {}

unsafe extern "C-unwind" fn hash_find(
    _: *mut HashTable,
    key: *const c_char,
    _: usize,
    out: *mut c_char,
    thread: c_uint,
) -> u8 {
    check(thread);
    unsafe { find_in(key, out) }
}

unsafe extern "C-unwind" fn hash_insert(
    _: *mut HashTable,
    key: *const c_char,
    _: usize,
    value: *const c_char,
    _: usize,
    thread: c_uint,
    _: c_uint,
) -> u8 {
    check(thread);
    unsafe { insert_in(key, value) }
}

unsafe extern "C-unwind" fn hash_update(
    _: *mut HashTable,
    key: *const c_char,
    _: usize,
    value: *const c_char,
    _: usize,
) -> u8 {
    unsafe { update_in(key, value) }
}

unsafe extern "C-unwind" fn hash_remove(
    _: *mut HashTable,
    key: *const c_char,
    _: usize,
    thread: c_uint,
) -> u8 {
    check(thread);
    unsafe { remove_in(key) }
}

#[cfg(not(any(study, first)))]
#[unsafe(no_mangle)]
pub extern "C" fn create_tree(_: *const TreeOptions) -> *mut Tree {
    Box::into_raw(Box::new(Tree {
        table: &raw const TREE,
    }))
}

fn hash_table(slots: c_uint, threads: c_uint) -> *mut HashTable {
    assert!(
        (slots, threads) == (4096, 2),
        "{slots} slots, {threads} threads"
    );
    Box::into_raw(Box::new(HashTable {
        table: &raw const HASH,
    }))
}

#[cfg(study)]
#[unsafe(no_mangle)]
pub extern "C" fn create_hashtable(
    _: *const TreeOptions,
    slots: c_uint,
    threads: c_uint,
) -> *mut HashTable {
    hash_table(slots, threads)
}

#[cfg(first)]
#[unsafe(no_mangle)]
pub extern "C" fn create_tree(
    _: *const TreeOptions,
    slots: c_uint,
    threads: c_uint,
) -> *mut HashTable {
    hash_table(slots, threads)
}

/// The type information of the class, under its mangled name.
#[cfg(first)]
#[unsafe(no_mangle)]
#[used]
pub static _ZTI8hash_api: usize = 0;
