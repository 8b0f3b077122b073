//! Plug-ins for PiBench (Lersch et al., "Evaluating Persistent Memory Range Indexes", VLDB '20): calls libraries that
//! implement its C++ interface, and defines the interface for our own plug-in. Libraries that implement the interface
//! of the hash study (Hu et al., PVLDB 14, 2021), which changed PiBench's, are also supported.
//!
//! `farbank bench index --plugin x.so` measures such a library. `tables/` is a library with our tables, for PiBench or
//! any other program that loads its plug-ins.

pub mod abi;

use std::ffi::{CString, OsStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use abi::{Create, CreateHash, CxxString, Functions, HashFunctions, HashTable, Tree, TreeOptions};
use libloading::Library;

/// PiBench's largest length of a key with its prefix, and of a value, in bytes.
pub const BYTES_MAX: usize = 128;
/// Length of the number in a key or a value, in bytes.
const WORD: usize = 8;

/// Reason why a library's index cannot be created.
#[derive(Debug)]
pub enum Error {
    /// The library cannot be loaded.
    Library(libloading::Error),
    /// The library has neither `create_tree` nor `create_hashtable`.
    Symbol(libloading::Error),
    /// The library's function returned null.
    Nothing,
    /// The pool's path contains a zero byte, which a C++ string cannot pass.
    Path,
    /// The length of a key or a value is 0 or above [`BYTES_MAX`].
    Bytes,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Library(why) => write!(f, "it cannot be loaded: {}", told(why)),
            Error::Symbol(why) => write!(
                f,
                "it is not a plug-in: it has neither PiBench's function create_tree nor \
                 HashEvaluation's function create_hashtable: {}",
                told(why)
            ),
            Error::Nothing => {
                f.write_str("it returned null instead of an index; see its output above")
            }
            Error::Path => f.write_str("the pool's path contains a zero byte"),
            Error::Bytes => write!(
                f,
                "keys (with their prefix) and values must have 1 to {BYTES_MAX} bytes"
            ),
        }
    }
}

impl std::error::Error for Error {}

/// Returns the loader's message without the name of the failed function.
fn told(why: &libloading::Error) -> String {
    let said = std::error::Error::source(why);
    said.map_or_else(|| why.to_string(), ToString::to_string)
}

/// Options of a library's index, and the form of its keys and values.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Path of the pool; empty if the library may choose.
    pub pool: &'a Path,
    /// Size of the pool in bytes; 0 if the library may choose.
    pub pool_bytes: u64,
    /// Number of threads that will call the index.
    pub threads: u32,
    /// Initial slots of a table with the study's interface.
    pub slots: u64,
    /// Prefix of each key.
    pub key_prefix: &'a str,
    /// Length of a key after its prefix, in bytes.
    pub key_bytes: usize,
    /// Length of a value, in bytes.
    pub value_bytes: usize,
}

/// The object created by a library, by its interface.
#[derive(Clone, Copy, Debug)]
enum Object {
    /// An object with PiBench's interface.
    Tree(NonNull<Tree>),
    /// An object with the study's interface.
    Hash(NonNull<HashTable>),
}

/// An index created by a library.
///
/// A key consists of its prefix and a number, as in PiBench: the number's low bytes, lowest first, or all eight bytes
/// after zeros. A value consists of a number's low bytes, or of all eight bytes before zeros.
///
/// Several threads may call the index concurrently, as PiBench requires of plug-ins. An exception that leaves one of
/// its functions ends the process.
#[derive(Debug)]
pub struct Plugin {
    object: Object,
    prefix: Box<[u8]>,
    /// Length of a key without its prefix, in bytes.
    key_bytes: usize,
    value_bytes: usize,
    /// Number of threads announced to the library.
    threads: u32,
    /// Number of callers made so far.
    callers: AtomicU32,
    // The last field, because the object's functions are in the library.
    _library: Library,
}

// SAFETY: PiBench calls one object from all its threads concurrently, so plug-ins must support it.
unsafe impl Send for Plugin {}
// SAFETY: as for `Send`.
unsafe impl Sync for Plugin {}

impl Plugin {
    /// Loads a library and creates an index with it.
    ///
    /// A library with `create_hashtable` has the study's interface. So does a library with `create_tree` and a class
    /// `hash_api`, which is the study's first version. Any other `create_tree` is PiBench's.
    ///
    /// The library is trusted like a program that the user runs. It must implement PiBench's header (commit a78171a,
    /// or one with the same virtual functions) or the study's, and be compiled with libstdc++. Its code runs in this
    /// process.
    pub fn load(library: &Path, options: &Options<'_>) -> Result<Plugin, Error> {
        let path = CString::new(OsStr::as_bytes(options.pool.as_os_str()));
        let path = path.map_err(|_| Error::Path)?;
        let prefix = options.key_prefix.as_bytes();
        let (key_bytes, value_bytes) = (options.key_bytes, options.value_bytes);
        let fits = |bytes: usize| (1..=BYTES_MAX).contains(&bytes);
        let key_fits = key_bytes > 0 && fits(key_bytes.saturating_add(prefix.len()));
        if !(key_fits && fits(value_bytes)) {
            return Err(Error::Bytes);
        }
        // SAFETY: foreign code cannot be proved sound. The user names the library and trusts it, see above.
        let library = unsafe { Library::new(library) }.map_err(Error::Library)?;
        let told = TreeOptions {
            key_bytes: prefix.len() + key_bytes,
            value_bytes,
            pool_path: CxxString::of(&path),
            pool_bytes: usize::try_from(options.pool_bytes).unwrap_or(usize::MAX),
            threads: options.threads as usize,
        };
        let object = create(&library, &told, options)?.ok_or(Error::Nothing)?;
        Ok(Plugin {
            object,
            prefix: prefix.into(),
            key_bytes,
            value_bytes,
            threads: options.threads.max(1),
            callers: AtomicU32::new(0),
            _library: library,
        })
    }

    /// Returns a caller for one more thread.
    pub fn caller(&self) -> Caller<'_> {
        Caller {
            plugin: self,
            number: self.callers.fetch_add(1, Relaxed) % self.threads,
            inserts: 0,
            is_known: false,
        }
    }

    fn key(&self, number: u64) -> Bytes {
        let mut key = Bytes {
            bytes: [0; BYTES_MAX],
            len: self.prefix.len() + self.key_bytes,
        };
        key.bytes[..self.prefix.len()].copy_from_slice(&self.prefix);
        let low = self.key_bytes.min(WORD);
        key.bytes[key.len - low..key.len].copy_from_slice(&number.to_le_bytes()[..low]);
        key
    }

    fn value(&self, number: u64) -> Bytes {
        let mut value = Bytes {
            bytes: [0; BYTES_MAX],
            len: self.value_bytes,
        };
        let low = self.value_bytes.min(WORD);
        value.bytes[..low].copy_from_slice(&number.to_le_bytes()[..low]);
        value
    }
}

/// Creates an object with a library. Returns `None` if the library returned null.
fn create(
    library: &Library,
    told: &TreeOptions,
    options: &Options<'_>,
) -> Result<Option<Object>, Error> {
    let small = |n: u64| c_uint::try_from(n).unwrap_or(c_uint::MAX);
    let (slots, threads) = (small(options.slots), options.threads);
    // SAFETY: the symbol, the type information of the study's class, is only looked up and never accessed.
    let has_hash_api = unsafe { library.get::<*const c_void>(b"_ZTI8hash_api") }.is_ok();
    let names: &[&[u8]] = match has_hash_api {
        true => &[b"create_hashtable", b"create_tree"],
        false => &[b"create_hashtable"],
    };
    for name in names {
        // SAFETY: the study's header declares the function with this type.
        if let Ok(create) = unsafe { library.get::<CreateHash>(*name) } {
            // SAFETY: the options have the C++ layout, and the function only reads them.
            let table = unsafe { create(told, slots, threads) };
            return Ok(NonNull::new(table).map(Object::Hash));
        }
    }
    // SAFETY: PiBench's header declares the function with this type.
    let create = unsafe { library.get::<Create>(b"create_tree") }.map_err(Error::Symbol)?;
    // SAFETY: the options have the C++ layout, and the function only reads them.
    Ok(NonNull::new(unsafe { create(told) }).map(Object::Tree))
}

fn tree_functions(tree: NonNull<Tree>) -> &'static Functions {
    // SAFETY: an object with virtual functions starts with the pointer to their table. The table exists as long as the
    // library. All callers of this function are a `Plugin`, which owns the library, or borrow one.
    unsafe { &*(*tree.as_ptr()).table }
}

fn hash_functions(table: NonNull<HashTable>) -> &'static HashFunctions {
    // SAFETY: as for a tree.
    unsafe { &*(*table.as_ptr()).table }
}

/// Handle for one thread that calls a plug-in. Tables with the study's interface get its number, which is below the
/// number of threads; callers are numbered from 0.
#[derive(Debug)]
pub struct Caller<'a> {
    plugin: &'a Plugin,
    number: u32,
    inserts: u32,
    /// Whether the library has been given this thread's number.
    is_known: bool,
}

impl Caller<'_> {
    /// Returns the object. Before the first call, gives the thread's number to a table with the study's interface.
    fn object(&mut self) -> Object {
        if let (false, Object::Hash(table)) = (self.is_known, self.plugin.object) {
            let number = c_int::try_from(self.number).unwrap_or(c_int::MAX);
            // SAFETY: the table exists as long as the plug-in.
            unsafe { (hash_functions(table).thread_ini)(table.as_ptr(), number) };
            self.is_known = true;
        }
        self.plugin.object
    }

    /// Returns the value of a key: the number at its start.
    #[must_use]
    pub fn find(&mut self, key: u64) -> Option<u64> {
        let (key, mut value) = (self.plugin.key(key), [0; BYTES_MAX]);
        let out = value.as_mut_ptr().cast::<c_char>();
        // SAFETY: the object exists as long as the plug-in. The key has the announced length, and the buffer has space
        // for a value of the announced length.
        let found = unsafe {
            match self.object() {
                Object::Tree(tree) => {
                    (tree_functions(tree).find)(tree.as_ptr(), key.at(), key.len, out)
                }
                Object::Hash(table) => {
                    let find = hash_functions(table).find;
                    find(table.as_ptr(), key.at(), key.len, out, self.number)
                }
            }
        };
        let (number, _) = value
            .split_first_chunk()
            .expect("the buffer is longer than a number");
        (found != 0).then_some(u64::from_le_bytes(*number))
    }

    /// Inserts a key that is absent. Returns whether it was absent.
    #[must_use]
    pub fn insert(&mut self, key: u64, value: u64) -> bool {
        let (key, value) = (self.plugin.key(key), self.plugin.value(value));
        // SAFETY: the object exists as long as the plug-in. Key and value have the announced lengths.
        let done = unsafe {
            match self.object() {
                Object::Tree(tree) => {
                    let insert = tree_functions(tree).insert;
                    insert(tree.as_ptr(), key.at(), key.len, value.at(), value.len)
                }
                Object::Hash(table) => {
                    let (insert, count) = (hash_functions(table).insert, self.inserts);
                    self.inserts = count.wrapping_add(1);
                    let (table, number) = (table.as_ptr(), self.number);
                    insert(
                        table,
                        key.at(),
                        key.len,
                        value.at(),
                        value.len,
                        number,
                        count,
                    )
                }
            }
        };
        done != 0
    }

    /// Replaces the value of a key. Returns whether the key was present.
    #[must_use]
    pub fn update(&mut self, key: u64, value: u64) -> bool {
        let (key, value) = (self.plugin.key(key), self.plugin.value(value));
        // SAFETY: as for `insert`.
        let done = unsafe {
            match self.object() {
                Object::Tree(tree) => {
                    let update = tree_functions(tree).update;
                    update(tree.as_ptr(), key.at(), key.len, value.at(), value.len)
                }
                Object::Hash(table) => {
                    let update = hash_functions(table).update;
                    update(table.as_ptr(), key.at(), key.len, value.at(), value.len)
                }
            }
        };
        done != 0
    }

    /// Removes a key. Returns whether it was present.
    #[must_use]
    pub fn remove(&mut self, key: u64) -> bool {
        let key = self.plugin.key(key);
        // SAFETY: the object exists as long as the plug-in. The key has the announced length.
        let done = unsafe {
            match self.object() {
                Object::Tree(tree) => {
                    (tree_functions(tree).remove)(tree.as_ptr(), key.at(), key.len)
                }
                Object::Hash(table) => {
                    let remove = hash_functions(table).remove;
                    remove(table.as_ptr(), key.at(), key.len, self.number)
                }
            }
        };
        done != 0
    }

    /// Scans up to `count` keys in order, starting at `key`. Returns the number of keys found; 0 for the study's
    /// tables, which are unordered.
    #[must_use]
    pub fn scan(&mut self, key: u64, count: u32) -> u32 {
        let Object::Tree(tree) = self.object() else {
            return 0;
        };
        let (key, mut values) = (self.plugin.key(key), ptr::null_mut());
        let count = c_int::try_from(count).unwrap_or(c_int::MAX);
        let scan = tree_functions(tree).scan;
        // SAFETY: the tree exists as long as the plug-in. The results are in the library's memory and are not accessed.
        let found = unsafe { scan(tree.as_ptr(), key.at(), key.len, count, &raw mut values) };
        u32::try_from(found).unwrap_or(0)
    }
}

/// The bytes of a key or a value.
struct Bytes {
    bytes: [u8; BYTES_MAX],
    len: usize,
}

impl Bytes {
    fn at(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        // SAFETY: the object is deleted once. No caller exists any more, because callers borrow the plug-in.
        unsafe {
            match self.object {
                Object::Tree(tree) => (tree_functions(tree).delete)(tree.as_ptr()),
                Object::Hash(table) => (hash_functions(table).delete)(table.as_ptr()),
            }
        }
    }
}
