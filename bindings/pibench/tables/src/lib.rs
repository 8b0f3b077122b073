//! Our tables as a plug-in for PiBench: `libfarbank_tables.so`.
//!
//! Environment variables select the table: `FARBANK_TABLE` its name (default `clht`), `FARBANK_SLOTS` its initial slots
//! (default 65,536), and `FARBANK_HASH` its hash function, `seeded` (default) or `published`, which is the study's.
//! With a `pool_path` the table is in that file, which is created or was left by an earlier run. Without one it is in
//! anonymous memory. `pool_size` is the size of either; 0 means 4 GiB of anonymous memory. Errors are printed on
//! stderr, as PiBench's plug-ins do. An operation that fails returns "absent" or "not stored".

use std::env;
use std::error::Error;
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crossbeam_utils::CachePadded;
use farbank_index::hash::Hashing;
use farbank_index::registry::{TableKind, TablePreset, TableSize};
use farbank_index::{Index, IndexError, PoolPlan, TableWorker};
use farbank_pibench::abi::{Functions, Layout, Tree, TreeOptions};
use farbank_pm::media::{AnyMedium, Mapped, OpenOptions, create_path, open_path};
use farbank_pm::sync::ignore_poison;

/// Length of a key and of a value, in bytes.
const WORD: usize = 8;
const SLOTS: u64 = 65_536;
/// Default size of a pool in anonymous memory. Untouched pages take no memory.
const POOL_BYTES: u64 = 4 << 30;

/// An object for C++, followed by our own fields.
#[repr(C)]
struct Object {
    tree: Tree,
    // Before the table, because workers refer to it and fields are dropped in order.
    workers: Box<[CachePadded<Mutex<TableWorker>>]>,
    table: Box<dyn Index>,
}

static LAYOUT: Layout = Layout {
    to_top: 0,
    type_info: ptr::null(),
    functions: Functions {
        destroy,
        delete,
        find,
        insert,
        update,
        remove,
        scan,
    },
};

/// Creates an index: the function that PiBench requires of plug-ins. Returns null on failure.
///
/// # Safety
/// `options` points to PiBench's `tree_options_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn create_tree(options: *const TreeOptions) -> *mut Tree {
    // SAFETY: the caller guarantees it.
    let options = unsafe { &*options };
    match catch_unwind(AssertUnwindSafe(|| Object::new(options))) {
        Ok(Ok(object)) => Box::into_raw(Box::new(object)).cast(),
        Ok(Err(error)) => {
            eprintln!("farbank: {error}");
            ptr::null_mut()
        }
        Err(_) => ptr::null_mut(),
    }
}

/// Returns the parsed environment variable `name`, or `usual` if it is not set.
fn set<T: std::str::FromStr<Err: std::fmt::Display>>(
    name: &str,
    usual: T,
) -> Result<T, Box<dyn Error>> {
    match env::var(name) {
        Ok(text) => text
            .parse()
            .map_err(|why| format!("{name}={text}: {why}").into()),
        Err(env::VarError::NotPresent) => Ok(usual),
        Err(why) => Err(format!("{name}: {why}").into()),
    }
}

impl Object {
    fn new(options: &TreeOptions) -> Result<Object, Box<dyn Error>> {
        let sizes = (options.key_bytes, options.value_bytes);
        if sizes != (WORD, WORD) {
            let (key, value) = sizes;
            return Err(format!(
                "keys of {key} and values of {value} bytes, expected 8 and 8: use -k 8 -v 8"
            )
            .into());
        }
        let threads = options.threads.clamp(1, 1024);
        let hash: String = set("FARBANK_HASH", "seeded".into())?;
        let hashing = match hash.as_str() {
            "seeded" => Hashing::Random,
            "published" => Hashing::Published,
            _ => return Err(format!("FARBANK_HASH={hash}: expected seeded or published").into()),
        };
        let plan = PoolPlan {
            contexts: threads as u32 + 1,
            hashing,
            ..PoolPlan::default()
        };
        let table = table(options, &plan)?;
        let workers: Result<_, IndexError> = (0..threads)
            .map(|_| Ok(CachePadded::new(Mutex::new(table.worker()?))))
            .collect();
        Ok(Object {
            tree: Tree {
                table: &raw const LAYOUT.functions,
            },
            workers: workers?,
            table,
        })
    }

    /// Runs `op` with this thread's worker. Returns `refused` if it fails or panics.
    fn run<T>(&self, refused: T, op: impl FnOnce(&mut TableWorker) -> Result<T, IndexError>) -> T {
        thread_local! {
            static THREAD: usize = THREADS.fetch_add(1, Relaxed);
        }
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        let done = catch_unwind(AssertUnwindSafe(|| {
            let number = THREAD.with(|number| *number) % self.workers.len();
            // Uncontended, unless more threads call than were announced.
            let mut worker = ignore_poison(self.workers[number].lock());
            op(&mut worker)
        }));
        match done {
            Ok(Ok(done)) => done,
            Ok(Err(why)) => {
                eprintln!("farbank: {why}");
                refused
            }
            // The panic's message has already been printed.
            Err(_) => refused,
        }
    }
}

/// Creates or opens the table that the options and the environment select.
fn table(options: &TreeOptions, plan: &PoolPlan) -> Result<Box<dyn Index>, Box<dyn Error>> {
    let table = set("FARBANK_TABLE", TableKind::Clht)?;
    let size = TableSize::Slots(set("FARBANK_SLOTS", SLOTS)?);
    // SAFETY: the bytes of a C++ string are followed by a zero.
    let path = unsafe { CStr::from_ptr(options.pool_path.at) };
    let path = Path::new(OsStr::from_bytes(path.to_bytes()));
    let bytes = options.pool_bytes as u64;
    if path.as_os_str().is_empty() {
        let bytes = if bytes == 0 { POOL_BYTES } else { bytes };
        return Ok(table.create(Mapped::anonymous(bytes)?, plan, size, TablePreset::Farbank)?);
    }
    let usual = OpenOptions::default();
    Ok(match path.exists() {
        true => match open_path(path, &usual)? {
            AnyMedium::Mapped(medium) => table.open(medium)?,
            AnyMedium::File(medium) => table.open(medium)?,
        },
        false => match create_path(path, bytes, &usual, &mut |_, _| ())? {
            AnyMedium::Mapped(medium) => table.create(medium, plan, size, TablePreset::Farbank)?,
            AnyMedium::File(medium) => table.create(medium, plan, size, TablePreset::Farbank)?,
        },
    })
}

/// Returns the object whose first field is `tree`.
///
/// # Safety
/// `tree` was made by [`create_tree`] and has not been deleted.
unsafe fn object<'a>(tree: *mut Tree) -> &'a Object {
    // SAFETY: the caller guarantees it, and `Object` is `repr(C)` and starts with its tree.
    unsafe { &*tree.cast() }
}

/// Reads a key or a value.
///
/// # Safety
/// 8 bytes are readable at `at`.
unsafe fn word(at: *const c_char) -> u64 {
    // SAFETY: the caller guarantees it.
    u64::from_le_bytes(unsafe { at.cast::<[u8; WORD]>().read() })
}

unsafe extern "C-unwind" fn destroy(tree: *mut Tree) {
    // SAFETY: C++ destroys an object once.
    unsafe { ptr::drop_in_place(tree.cast::<Object>()) };
}

unsafe extern "C-unwind" fn delete(tree: *mut Tree) {
    // SAFETY: `create_tree` made the object with a box, and C++ deletes an object once.
    drop(unsafe { Box::from_raw(tree.cast::<Object>()) });
}

unsafe extern "C-unwind" fn find(
    tree: *mut Tree,
    key: *const c_char,
    _: usize,
    value: *mut c_char,
) -> u8 {
    // SAFETY: PiBench passes a tree, a key of the announced length, and space for a value.
    let (object, key) = unsafe { (object(tree), word(key)) };
    let found = object.run(None, |worker| object.table.get(worker, key));
    if let Some(found) = found {
        // SAFETY: PiBench passes space for a value.
        unsafe { value.cast::<[u8; WORD]>().write(found.to_le_bytes()) };
    }
    found.is_some().into()
}

/// Runs `op` on the table of `tree` with a key and a value.
///
/// # Safety
/// `tree` was made by [`create_tree`], and the key and the value have the announced lengths.
unsafe fn write(
    tree: *mut Tree,
    key: *const c_char,
    value: *const c_char,
    op: fn(&dyn Index, &mut TableWorker, u64, u64) -> Result<bool, IndexError>,
) -> u8 {
    // SAFETY: the caller guarantees it.
    let (object, key, value) = unsafe { (object(tree), word(key), word(value)) };
    let done = object.run(false, |worker| op(&*object.table, worker, key, value));
    done.into()
}

unsafe extern "C-unwind" fn insert(
    tree: *mut Tree,
    key: *const c_char,
    _: usize,
    value: *const c_char,
    _: usize,
) -> u8 {
    // SAFETY: PiBench passes a tree, and a key and a value of the announced lengths.
    unsafe {
        write(tree, key, value, |table, worker, key, value| {
            Ok(table.insert(worker, key, value)?.is_none())
        })
    }
}

unsafe extern "C-unwind" fn update(
    tree: *mut Tree,
    key: *const c_char,
    _: usize,
    value: *const c_char,
    _: usize,
) -> u8 {
    // SAFETY: as for `insert`.
    unsafe {
        write(tree, key, value, |table, worker, key, value| {
            Ok(table.update(worker, key, value)?.is_some())
        })
    }
}

unsafe extern "C-unwind" fn remove(tree: *mut Tree, key: *const c_char, _: usize) -> u8 {
    // SAFETY: as for `insert`.
    let (object, key) = unsafe { (object(tree), word(key)) };
    let done = object.run(false, |worker| {
        Ok(object.table.remove(worker, key)?.is_some())
    });
    done.into()
}

/// Finds no keys: hash tables are unordered.
unsafe extern "C-unwind" fn scan(
    _: *mut Tree,
    _: *const c_char,
    _: usize,
    _: c_int,
    _: *mut *mut c_char,
) -> c_int {
    0
}
