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

use std::ffi::{c_char, c_int, c_void};

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
    pub find: unsafe extern "C-unwind" fn(*mut Tree, *const c_char, usize, *mut c_char) -> bool,
    /// Stores a value under a key that has none; whether it had none.
    pub insert: Write,
    /// Replaces the value under a key; whether there was one.
    pub update: Write,
    /// Removes a key; whether it was there.
    pub remove: unsafe extern "C-unwind" fn(*mut Tree, *const c_char, usize) -> bool,
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
    unsafe extern "C-unwind" fn(*mut Tree, *const c_char, usize, *const c_char, usize) -> bool;

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
