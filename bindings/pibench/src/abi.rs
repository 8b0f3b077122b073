//! What C++ compilers make of PiBench's header, for the ABI of Linux (Itanium's, libstdc++).
//!
//! ```text
//!   an object          its table of virtual functions
//!   ┌────────┐         ┌─────────┬──────┬─────────┬────────┬──────┬────────┬────────┬────────┬──────┐
//!   │ table ─┼────┐    │ to top 0│ type │ destroy │ delete │ find │ insert │ update │ remove │ scan │
//!   │ ...    │    │    └─────────┴──────┴─────────┴────────┴──────┴────────┴────────┴────────┴──────┘
//!   └────────┘    └───────────────────────▲
//!
//!   options: key size, value size, path: { where, length, 16 bytes in place or capacity }, pool size, threads
//! ```
//!
//! `destroy` ends an object where it is, `delete` also gives its memory back. The header is PiBench's of commit
//! a78171a; ours, with the same layout, is `include/tree_api.hpp`.
//!
//! The study of hash tables (Hu et al., PVLDB 14, 2021) changed the interface: [`HashFunctions`] is that of its repository
//! HashEvaluation, of commit 7bdfd95; ours, with the same layout, is `include/hash_api.hpp`.
//!
//! A C++ `bool` is a byte here: a library may answer any, and a Rust `bool` must be 0 or 1.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// What a library's `create_tree` is told: PiBench's `tree_options_t`.
#[repr(C)]
#[derive(Debug)]
pub struct TreeOptions {
    /// Bytes of a key.
    pub key_bytes: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Where the pool is; empty: anywhere.
    pub pool_path: CxxString,
    /// Bytes of the pool; 0: as many as the library likes.
    pub pool_bytes: usize,
    /// Threads that will call.
    pub threads: usize,
}

/// A `std::string` of libstdc++.
#[repr(C)]
#[derive(Debug)]
pub struct CxxString {
    /// Where its bytes are; a zero follows them.
    pub at: *const c_char,
    /// How many.
    pub len: usize,
    /// Of a string that is not in here: what its memory has room for.
    pub capacity: usize,
    rest: usize,
}

impl CxxString {
    /// Of bytes that a zero follows and that stay where they are: for whoever only reads it.
    pub(crate) fn of(text: &std::ffi::CStr) -> CxxString {
        let len = text.to_bytes().len();
        CxxString {
            at: text.as_ptr(),
            len,
            capacity: len,
            rest: 0,
        }
    }
}

/// `create_tree`.
pub type Create = unsafe extern "C-unwind" fn(*const TreeOptions) -> *mut Tree;

/// An object of a class derived from PiBench's `tree_api`: it starts with where its table is.
#[repr(C)]
#[derive(Debug)]
pub struct Tree {
    /// Its virtual functions.
    pub table: *const Functions,
}

/// The virtual functions of `tree_api`, in their order.
#[repr(C)]
#[derive(Debug)]
pub struct Functions {
    /// Ends the object and leaves its memory.
    pub destroy: unsafe extern "C-unwind" fn(*mut Tree),
    /// Ends the object and gives its memory back.
    pub delete: unsafe extern "C-unwind" fn(*mut Tree),
    /// Copies the value under a key to where the last argument says; whether there is one.
    pub find: unsafe extern "C-unwind" fn(*mut Tree, *const c_char, usize, *mut c_char) -> u8,
    /// Stores a value under a key that has none; whether it had none.
    pub insert: Write,
    /// Replaces the value under a key; whether there was one.
    pub update: Write,
    /// Removes a key; whether it was there.
    pub remove: unsafe extern "C-unwind" fn(*mut Tree, *const c_char, usize) -> u8,
    /// Finds keys in order from one on; how many.
    pub scan: unsafe extern "C-unwind" fn(
        *mut Tree,
        *const c_char,
        usize,
        c_int,
        *mut *mut c_char,
    ) -> c_int,
}

/// What takes a key and a value.
pub type Write =
    unsafe extern "C-unwind" fn(*mut Tree, *const c_char, usize, *const c_char, usize) -> u8;

/// `create_hashtable`: options, slots at first, and threads that will call.
pub type CreateHash =
    unsafe extern "C-unwind" fn(*const TreeOptions, c_uint, c_uint) -> *mut HashTable;

/// An object of a class derived from the study's `hash_api`: it starts with where its table is.
#[repr(C)]
#[derive(Debug)]
pub struct HashTable {
    /// Its virtual functions.
    pub table: *const HashFunctions,
}

/// The virtual functions of `hash_api`, in their order. Those that are not called from here are addresses.
#[repr(C)]
#[derive(Debug)]
pub struct HashFunctions {
    /// Tells that the calling thread has this number, before its first call.
    pub thread_ini: unsafe extern "C-unwind" fn(*mut HashTable, c_int),
    /// `forsoft`, `hash_name`.
    pub before_destroy: [*const c_void; 2],
    /// Ends the object and leaves its memory.
    pub destroy: unsafe extern "C-unwind" fn(*mut HashTable),
    /// Ends the object and gives its memory back.
    pub delete: unsafe extern "C-unwind" fn(*mut HashTable),
    /// `utilization`, `recovery`, `vmem_print_api`.
    pub before_find: [*const c_void; 3],
    /// Copies the value under a key to where an argument says; whether there is one. The last argument is the thread's number.
    pub find: unsafe extern "C-unwind" fn(
        *mut HashTable,
        *const c_char,
        usize,
        *mut c_char,
        c_uint,
    ) -> u8,
    /// Stores a value under a key that has none; whether it had none. The last arguments are the thread's number, and how
    /// many inserts it has done.
    pub insert: unsafe extern "C-unwind" fn(
        *mut HashTable,
        *const c_char,
        usize,
        *const c_char,
        usize,
        c_uint,
        c_uint,
    ) -> u8,
    /// `insertResize`.
    pub before_update: *const c_void,
    /// Replaces the value under a key; whether there was one.
    pub update: unsafe extern "C-unwind" fn(
        *mut HashTable,
        *const c_char,
        usize,
        *const c_char,
        usize,
    ) -> u8,
    /// Removes a key; whether it was there. The last argument is the thread's number.
    pub remove: unsafe extern "C-unwind" fn(*mut HashTable, *const c_char, usize, c_uint) -> u8,
    /// Two of `scan`, which finds nothing in a table without order.
    pub after_remove: [*const c_void; 2],
}

// SAFETY: it is never written to, and what it points to are functions.
unsafe impl Sync for HashFunctions {}

/// A table of virtual functions as it lies in memory: what the object points to is in the middle of it.
#[repr(C)]
#[derive(Debug)]
pub struct Layout {
    /// Bytes from this part of an object to its start.
    pub to_top: isize,
    /// What `typeid` tells: nothing.
    pub type_info: *const c_void,
    /// The functions.
    pub functions: Functions,
}

// SAFETY: it is never written to, and what it points to are functions.
unsafe impl Sync for Layout {}
