//! The tree on memory servers for programs in C and C++: the functions of `include/farbank_tree.h`.
//!
//! ```text
//!   program in C ──▶ farbank_tree.h ──▶ this crate ──▶ farbank_tree::Cluster ──▶ memory servers
//! ```
//!
//! # Invariants
//! TREE-C-1  Bytes that a function returns are a boxed slice, or null. Only [`farbank_tree_free`] frees them.
//! TREE-C-2  No panic leaves a function: it becomes an error.
//! TREE-C-3  Every error of a function is the last error of the calling thread, until its next call.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::time::Duration;

use farbank_fabric::shm::ServerAddress;
use farbank_fabric::tcp::SharedKey;
use farbank_tree::{CasOutcome, Cluster, ClusterSettings, TreeSettings};

/// `FARBANK_TREE_OK`: the operation succeeded.
pub const OK: c_int = 0;
/// `FARBANK_TREE_NO`: the key is absent, or the condition was not met.
pub const NO: c_int = 1;
/// `FARBANK_TREE_ERROR`: the operation failed.
pub const ERROR: c_int = -1;

/// `farbank_tree`: a connection to a tree.
pub struct Tree(Cluster);

/// `struct farbank_bytes`: bytes of a key or a value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Bytes {
    /// The first byte, or null.
    pub data: *const c_void,
    /// Number of bytes.
    pub bytes: usize,
}

/// `farbank_tree_each`: receives the keys of a scan.
pub type Each = unsafe extern "C" fn(to: *mut c_void, key: Bytes, value: Bytes) -> c_int;

impl Bytes {
    /// No bytes.
    pub const NONE: Bytes = Bytes {
        data: ptr::null(),
        bytes: 0,
    };

    /// Returns bytes that the caller frees (TREE-C-1).
    fn owned(bytes: Vec<u8>) -> Bytes {
        if bytes.is_empty() {
            return Bytes::NONE;
        }
        let bytes = Box::leak(bytes.into_boxed_slice());
        Bytes::borrowed(bytes)
    }

    fn borrowed(bytes: &[u8]) -> Bytes {
        Bytes {
            data: bytes.as_ptr().cast(),
            bytes: bytes.len(),
        }
    }

    /// # Safety
    /// `data` is null, or `bytes` bytes at `data` may be read for `'a`.
    #[expect(
        clippy::disallowed_methods,
        reason = "the bytes are memory of the program in C, not a medium"
    )]
    unsafe fn get<'a>(self) -> &'a [u8] {
        match self.data.is_null() {
            true => &[],
            // SAFETY: the caller guarantees the bytes.
            false => unsafe { std::slice::from_raw_parts(self.data.cast(), self.bytes) },
        }
    }
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Runs the body of a function. Returns `failed`, and keeps the message, if it returns an error or panics.
fn guarded<T>(failed: T, body: impl FnOnce() -> Result<T, String>) -> T {
    let done = catch_unwind(AssertUnwindSafe(body));
    let done = done.unwrap_or_else(|_| Err("a defect of the library: see standard error".into()));
    let (result, message) = match done {
        Ok(result) => (result, String::new()),
        Err(message) => (failed, message),
    };
    // A message has no zero bytes, except perhaps those of a given address.
    let message = CString::new(message.replace('\0', "\\0")).unwrap_or_default();
    LAST_ERROR.with(|last| last.replace(message));
    result
}

/// Runs an operation on a tree.
///
/// # Safety
/// `tree` is null or a tree that is not closed during the call.
unsafe fn on_tree(tree: *mut Tree, body: impl FnOnce(&Cluster) -> Result<c_int, String>) -> c_int {
    guarded(ERROR, || {
        // SAFETY: the caller guarantees the tree.
        let tree = unsafe { tree.as_ref() }.ok_or("the tree is null")?;
        body(&tree.0)
    })
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn connect(servers: &CStr, key: &[u8], timeout_ms: u32) -> Result<Cluster, String> {
    let servers = servers
        .to_str()
        .map_err(|_| "the list of servers is not text")?;
    let addresses: Result<Vec<ServerAddress>, String> = servers
        .split(',')
        .map(|server| {
            let address: Result<ServerAddress, _> = server.trim().parse();
            address.map_err(text)
        })
        .collect();
    let key = SharedKey::new(key).ok_or("the key of the cluster is too short or too long")?;
    let settings = ClusterSettings {
        timeout: Duration::from_millis(timeout_ms.max(1).into()),
        ..ClusterSettings::new(addresses?, key)
    };
    Cluster::connect(settings).map_err(text)
}

/// `farbank_tree_connect`.
///
/// # Safety
/// `servers` is null or ends with a zero byte, and `key` may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farbank_tree_connect(
    servers: *const c_char,
    key: Bytes,
    timeout_ms: u32,
) -> *mut Tree {
    guarded(ptr::null_mut(), || {
        if servers.is_null() {
            return Err("the list of servers is null".into());
        }
        // SAFETY: the caller guarantees both.
        let (servers, key) = unsafe { (CStr::from_ptr(servers), key.get()) };
        let cluster = connect(servers, key, timeout_ms)?;
        Ok(Box::into_raw(Box::new(Tree(cluster))))
    })
}

/// `farbank_tree_close`.
///
/// # Safety
/// `tree` is null, or a tree that no other call uses now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farbank_tree_close(tree: *mut Tree) {
    guarded((), || {
        if !tree.is_null() {
            // SAFETY: farbank_tree_connect made it from a box, and the caller gives it up.
            drop(unsafe { Box::from_raw(tree) });
        }
        Ok(())
    });
}

/// `farbank_tree_create`.
///
/// # Safety
/// As for [`farbank_tree_get`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farbank_tree_create(
    tree: *mut Tree,
    key_bytes_max: usize,
    value_bytes_max: usize,
) -> c_int {
    let settings = TreeSettings {
        key_bytes_max,
        value_bytes_max,
    };
    // SAFETY: the caller guarantees the tree.
    unsafe {
        on_tree(tree, |tree| {
            tree.create(&settings).map(|()| OK).map_err(text)
        })
    }
}

/// `farbank_tree_get`.
///
/// # Safety
/// `tree` is null or a tree that is not closed during the call, `key` may be read, and `value` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farbank_tree_get(tree: *mut Tree, key: Bytes, value: *mut Bytes) -> c_int {
    let get = |tree: &Cluster| {
        if value.is_null() {
            return Err("the place for the value is null".into());
        }
        // SAFETY: the caller guarantees the key.
        let found = tree.get(unsafe { key.get() }).map_err(text)?;
        let result = if found.is_some() { OK } else { NO };
        // SAFETY: the caller guarantees the place.
        unsafe { value.write(found.map_or(Bytes::NONE, Bytes::owned)) };
        Ok(result)
    };
    // SAFETY: the caller guarantees the tree.
    unsafe { on_tree(tree, get) }
}

/// `farbank_tree_put`.
///
/// # Safety
/// As for [`farbank_tree_get`]; `value` may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farbank_tree_put(tree: *mut Tree, key: Bytes, value: Bytes) -> c_int {
    // SAFETY: the caller guarantees the tree, the key and the value.
    unsafe {
        on_tree(tree, |tree| {
            tree.put(key.get(), value.get()).map(|_| OK).map_err(text)
        })
    }
}

/// `farbank_tree_delete`.
///
/// # Safety
/// As for [`farbank_tree_get`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farbank_tree_delete(tree: *mut Tree, key: Bytes) -> c_int {
    // SAFETY: the caller guarantees the tree and the key.
    unsafe {
        on_tree(tree, |tree| {
            let removed = tree.delete(key.get()).map_err(text)?;
            Ok(if removed { OK } else { NO })
        })
    }
}

/// `farbank_tree_compare_and_swap`.
///
/// # Safety
/// As for [`farbank_tree_get`]. `expected` and `new_value` are null or may be read; `found` and `is_present` are null or may be
/// written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farbank_tree_compare_and_swap(
    tree: *mut Tree,
    key: Bytes,
    expected: *const Bytes,
    new_value: *const Bytes,
    found: *mut Bytes,
    is_present: *mut c_int,
) -> c_int {
    let swap = |tree: &Cluster| {
        // SAFETY: the caller guarantees the key and both values.
        let (key, expected, new_value) = unsafe {
            let given = |value: *const Bytes| value.as_ref().map(|value| value.get());
            (key.get(), given(expected), given(new_value))
        };
        let outcome = tree.compare_and_swap(key, expected, new_value);
        let CasOutcome::Differs(value) = outcome.map_err(text)? else {
            return Ok(OK);
        };
        // SAFETY: the caller guarantees both places.
        unsafe {
            if !is_present.is_null() {
                is_present.write(value.is_some().into());
            }
            if !found.is_null() {
                found.write(value.map_or(Bytes::NONE, Bytes::owned));
            }
        }
        Ok(NO)
    };
    // SAFETY: the caller guarantees the tree.
    unsafe { on_tree(tree, swap) }
}

/// `farbank_tree_scan`.
///
/// # Safety
/// As for [`farbank_tree_get`]. `from` and `before` are null or may be read, and `each` may be called with `to`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farbank_tree_scan(
    tree: *mut Tree,
    from: *const Bytes,
    before: *const Bytes,
    is_reverse: c_int,
    count: usize,
    each: Option<Each>,
    to: *mut c_void,
) -> c_int {
    let scan = |tree: &Cluster| {
        let each = each.ok_or("the function for each key is null")?;
        // SAFETY: the caller guarantees both bounds.
        let (from, before) = unsafe {
            let given = |bound: *const Bytes| bound.as_ref().map(|bound| bound.get());
            (
                given(from).map_or(Bound::Unbounded, Bound::Included),
                given(before).map_or(Bound::Unbounded, Bound::Excluded),
            )
        };
        let call = |key: &[u8], value: &[u8]| {
            // SAFETY: the caller guarantees the function.
            unsafe { each(to, Bytes::borrowed(key), Bytes::borrowed(value)) == 0 }
        };
        let scanned = tree.scan_each(from, before, is_reverse != 0, count, call);
        scanned.map(|()| OK).map_err(text)
    };
    // SAFETY: the caller guarantees the tree.
    unsafe { on_tree(tree, scan) }
}

/// `farbank_tree_free`.
///
/// # Safety
/// `bytes` is null, or points to bytes that another function returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farbank_tree_free(bytes: *mut Bytes) {
    // SAFETY: the caller guarantees the pointer.
    let Some(bytes) = (unsafe { bytes.as_mut() }) else {
        return;
    };
    let Bytes { data, bytes: len } = std::mem::replace(bytes, Bytes::NONE);
    if !data.is_null() {
        let slice = ptr::slice_from_raw_parts_mut(data.cast_mut().cast::<u8>(), len);
        // SAFETY: the bytes are a leaked box of this length (TREE-C-1).
        drop(unsafe { Box::from_raw(slice) });
    }
}

/// `farbank_tree_error`.
#[unsafe(no_mangle)]
pub extern "C" fn farbank_tree_error() -> *const c_char {
    LAST_ERROR.with(|last| last.borrow().as_ptr())
}
