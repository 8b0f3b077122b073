//! The binary layout of PiBench's C++ interface in the Linux ABI (Itanium C++ ABI, libstdc++).
//!
//! ```text
//!   an object          its virtual function table
//!   ┌────────┐         ┌─────────┬──────┬─────────┬────────┬──────┬────────┬────────┬────────┬──────┐
//!   │ table ─┼────┐    │ to top 0│ type │ destroy │ delete │ find │ insert │ update │ remove │ scan │
//!   │ ...    │    │    └─────────┴──────┴─────────┴────────┴──────┴────────┴────────┴────────┴──────┘
//!   └────────┘    └───────────────────────▲
//!
//!   options: key size, value size, path: { pointer, length, 16 bytes inline or capacity }, pool size, threads
//! ```
//!
//! `destroy` runs the destructor only, `delete` also frees the memory. PiBench's header is that of commit a78171a;
//! `include/tree_api.hpp` is our header with the same layout.
//!
//! The study of hash tables (Hu et al., PVLDB 14, 2021) changed the interface. [`HashFunctions`] is the interface of
//! its repository HashEvaluation, commit 7bdfd95; `include/hash_api.hpp` is our header with the same layout.
//!
//! A C++ `bool` is declared as a byte here: a library may return any byte, and a Rust `bool` must be 0 or 1.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// Options passed to a library's `create_tree`: PiBench's `tree_options_t`.
#[repr(C)]
#[derive(Debug)]
pub struct TreeOptions {
    /// Length of a key, in bytes.
    pub key_bytes: usize,
    /// Length of a value, in bytes.
    pub value_bytes: usize,
    /// Path of the pool; empty if the library may choose.
    pub pool_path: CxxString,
    /// Size of the pool in bytes; 0 if the library may choose.
    pub pool_bytes: usize,
    /// Number of threads that will call the index.
    pub threads: usize,
}

/// A `std::string` of libstdc++.
#[repr(C)]
#[derive(Debug)]
pub struct CxxString {
    /// Address of the bytes, which are followed by a zero.
    pub at: *const c_char,
    /// Number of bytes.
    pub len: usize,
    /// Capacity of the memory, for a string that is not stored inline.
    pub capacity: usize,
    rest: usize,
}

impl CxxString {
    /// Returns a string that refers to the bytes of `text`. It is valid as long as `text`, and for reading only.
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

/// Type of the function `create_tree`.
pub type Create = unsafe extern "C-unwind" fn(*const TreeOptions) -> *mut Tree;

/// An object of a class derived from PiBench's `tree_api`. It starts with the pointer to its virtual functions.
#[repr(C)]
#[derive(Debug)]
pub struct Tree {
    /// The object's virtual functions.
    pub table: *const Functions,
}

/// The virtual functions of `tree_api`, in their order.
#[repr(C)]
#[derive(Debug)]
pub struct Functions {
    /// Runs the destructor without freeing the memory.
    pub destroy: unsafe extern "C-unwind" fn(*mut Tree),
    /// Runs the destructor and frees the memory.
    pub delete: unsafe extern "C-unwind" fn(*mut Tree),
    /// Copies a key's value to the last argument. Returns whether the key is present.
    pub find: unsafe extern "C-unwind" fn(*mut Tree, *const c_char, usize, *mut c_char) -> u8,
    /// Inserts a key that is absent. Returns whether it was absent.
    pub insert: Write,
    /// Replaces the value of a key. Returns whether the key was present.
    pub update: Write,
    /// Removes a key. Returns whether it was present.
    pub remove: unsafe extern "C-unwind" fn(*mut Tree, *const c_char, usize) -> u8,
    /// Finds keys in order, starting at a given key. Returns the number of keys found.
    pub scan: unsafe extern "C-unwind" fn(
        *mut Tree,
        *const c_char,
        usize,
        c_int,
        *mut *mut c_char,
    ) -> c_int,
}

/// Type of the functions that take a key and a value.
pub type Write =
    unsafe extern "C-unwind" fn(*mut Tree, *const c_char, usize, *const c_char, usize) -> u8;

/// Type of the function `create_hashtable`: options, initial slots, and number of calling threads.
pub type CreateHash =
    unsafe extern "C-unwind" fn(*const TreeOptions, c_uint, c_uint) -> *mut HashTable;

/// An object of a class derived from the study's `hash_api`. It starts with the pointer to its virtual functions.
#[repr(C)]
#[derive(Debug)]
pub struct HashTable {
    /// The object's virtual functions.
    pub table: *const HashFunctions,
}

/// The virtual functions of `hash_api`, in their order. Functions that are never called from here are plain addresses.
#[repr(C)]
#[derive(Debug)]
pub struct HashFunctions {
    /// Sets the number of the calling thread, before its first call.
    pub thread_ini: unsafe extern "C-unwind" fn(*mut HashTable, c_int),
    /// `forsoft`, `hash_name`.
    pub before_destroy: [*const c_void; 2],
    /// Runs the destructor without freeing the memory.
    pub destroy: unsafe extern "C-unwind" fn(*mut HashTable),
    /// Runs the destructor and frees the memory.
    pub delete: unsafe extern "C-unwind" fn(*mut HashTable),
    /// `utilization`, `recovery`, `vmem_print_api`.
    pub before_find: [*const c_void; 3],
    /// Copies a key's value to an argument. Returns whether the key is present. The last argument is the thread's
    /// number.
    pub find: unsafe extern "C-unwind" fn(
        *mut HashTable,
        *const c_char,
        usize,
        *mut c_char,
        c_uint,
    ) -> u8,
    /// Inserts a key that is absent. Returns whether it was absent. The last arguments are the thread's number and the
    /// number of inserts that the thread has done before.
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
    /// Replaces the value of a key. Returns whether the key was present.
    pub update: unsafe extern "C-unwind" fn(
        *mut HashTable,
        *const c_char,
        usize,
        *const c_char,
        usize,
    ) -> u8,
    /// Removes a key. Returns whether it was present. The last argument is the thread's number.
    pub remove: unsafe extern "C-unwind" fn(*mut HashTable, *const c_char, usize, c_uint) -> u8,
    /// Two overloads of `scan`, which finds no keys in an unordered table.
    pub after_remove: [*const c_void; 2],
}

// SAFETY: the table is never written to, and it contains only addresses of functions.
unsafe impl Sync for HashFunctions {}

/// A virtual function table in memory. The pointer in an object refers to its field `functions`.
#[repr(C)]
#[derive(Debug)]
pub struct Layout {
    /// Offset from this part of an object to the object's start, in bytes.
    pub to_top: isize,
    /// Type information for `typeid`; null.
    pub type_info: *const c_void,
    /// The functions.
    pub functions: Functions,
}

// SAFETY: the table is never written to, and it contains only addresses of functions.
unsafe impl Sync for Layout {}
