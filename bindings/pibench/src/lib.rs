//! PiBench's plug-ins (Lersch et al., "Evaluating Persistent Memory Range Indexes", VLDB '20): how libraries
//! written against its C++ header are called from here, and what one of ours must look like. Libraries written against the
//! header of the hash study (Hu et al., PVLDB 14, 2021), which changed PiBench's, are called, too.
//!
//! `farbank bench index --plugin x.so` measures such a library; `tables/` is one that has our tables in it, for
//! PiBench itself or any other program that loads its plug-ins.

pub mod abi;

use std::ffi::{CString, OsStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use abi::{Create, CreateHash, CxxString, Functions, HashFunctions, HashTable, Tree, TreeOptions};
use libloading::Library;

/// Most bytes of a key with its prefix, and of a value: PiBench's.
pub const MOST_BYTES: usize = 128;
/// Bytes of the number that a key, or a value, is made of.
const WORD: usize = 8;

/// Why there is no index of a library's.
#[derive(Debug)]
pub enum Error {
    /// It is no library that can be loaded here.
    Library(libloading::Error),
    /// It has neither `create_tree` nor `create_hashtable`.
    Symbol(libloading::Error),
    /// Its function made nothing.
    Nothing,
    /// A path with a zero in it, which C++ cannot be told.
    Path,
    /// Keys or values of more than [`MOST_BYTES`], or of none.
    Bytes,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Library(why) => write!(f, "it cannot be loaded: {}", told(why)),
            Error::Symbol(why) => write!(
                f,
                "it is no plug-in: it has neither a function create_tree, as PiBench's, nor \
                 create_hashtable, as HashEvaluation's: {}",
                told(why)
            ),
            Error::Nothing => {
                f.write_str("it returned null in place of an index; it may say why above")
            }
            Error::Path => f.write_str("a path has no zero in it"),
            Error::Bytes => write!(f, "keys and values have 1 to {MOST_BYTES} bytes"),
        }
    }
}

impl std::error::Error for Error {}

/// What the loader said, rather than which of its functions said it.
fn told(why: &libloading::Error) -> String {
    let said = std::error::Error::source(why);
    said.map_or_else(|| why.to_string(), ToString::to_string)
}

/// What an index of a library's is told at its start, and what its keys and values are made like.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Where its pool is to be; empty: where it likes.
    pub pool: &'a Path,
    /// Bytes of its pool; 0: as it likes.
    pub pool_bytes: u64,
    /// Threads that will call.
    pub threads: u32,
    /// Slots that a table of the study's starts with.
    pub slots: u64,
    /// What each key begins with.
    pub key_prefix: &'a str,
    /// Bytes of a key after that.
    pub key_bytes: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
}

/// The object that a library made, by its interface.
#[derive(Clone, Copy, Debug)]
enum Object {
    /// PiBench's.
    Tree(NonNull<Tree>),
    /// The study's.
    Hash(NonNull<HashTable>),
}

/// An index made by a library.
///
/// A key is its prefix and, as PiBench makes them, a number: the low bytes of it, the lowest first, or all eight after
/// zeros. A value is a number's low bytes, or all eight before zeros.
///
/// Its functions may be called by several threads at once: that is what PiBench asks of plug-ins. An exception that
/// leaves one of them ends the process.
#[derive(Debug)]
pub struct Plugin {
    object: Object,
    prefix: Box<[u8]>,
    /// Of a key, without its prefix.
    key_bytes: usize,
    value_bytes: usize,
    /// Threads that it was told of.
    threads: u32,
    /// Callers that were made.
    callers: AtomicU32,
    // After the object: its functions are in here.
    _library: Library,
}

// SAFETY: PiBench calls one object from all its threads at once, so plug-ins are made for that.
unsafe impl Send for Plugin {}
// SAFETY: as before.
unsafe impl Sync for Plugin {}

impl Plugin {
    /// Loads a library, and has it make an index.
    ///
    /// A library with `create_hashtable` has the study's interface. So has one with `create_tree` and a class `hash_api`:
    /// the study's first version. Any other `create_tree` is PiBench's.
    ///
    /// The library is trusted like a program that somebody starts: it is written against PiBench's header, of commit
    /// a78171a or one with the same virtual functions, or the study's, and compiled with libstdc++, and what it does to this
    /// process is what who named it wanted.
    pub fn load(library: &Path, options: &Options<'_>) -> Result<Plugin, Error> {
        let path = CString::new(OsStr::as_bytes(options.pool.as_os_str()));
        let path = path.map_err(|_| Error::Path)?;
        let prefix = options.key_prefix.as_bytes();
        let (key_bytes, value_bytes) = (options.key_bytes, options.value_bytes);
        let fits = |bytes: usize| (1..=MOST_BYTES).contains(&bytes);
        let key_fits = key_bytes > 0 && fits(key_bytes.saturating_add(prefix.len()));
        if !(key_fits && fits(value_bytes)) {
            return Err(Error::Bytes);
        }
        // SAFETY: none can be proved of other people's code; see above.
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

    /// One more thread that calls it.
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
            bytes: [0; MOST_BYTES],
            len: self.prefix.len() + self.key_bytes,
        };
        key.bytes[..self.prefix.len()].copy_from_slice(&self.prefix);
        let low = self.key_bytes.min(WORD);
        key.bytes[key.len - low..key.len].copy_from_slice(&number.to_le_bytes()[..low]);
        key
    }

    fn value(&self, number: u64) -> Bytes {
        let mut value = Bytes {
            bytes: [0; MOST_BYTES],
            len: self.value_bytes,
        };
        let low = self.value_bytes.min(WORD);
        value.bytes[..low].copy_from_slice(&number.to_le_bytes()[..low]);
        value
    }
}

/// Has a library make an object; `None`: it made nothing.
fn create(
    library: &Library,
    told: &TreeOptions,
    options: &Options<'_>,
) -> Result<Option<Object>, Error> {
    let small = |n: u64| c_uint::try_from(n).unwrap_or(c_uint::MAX);
    let (slots, threads) = (small(options.slots), options.threads);
    // SAFETY: only its address is asked for; it is the type information of the study's class.
    let has_hash_api = unsafe { library.get::<*const c_void>(b"_ZTI8hash_api") }.is_ok();
    let names: &[&[u8]] = match has_hash_api {
        true => &[b"create_hashtable", b"create_tree"],
        false => &[b"create_hashtable"],
    };
    for name in names {
        // SAFETY: the study's header says that it is of this type.
        if let Ok(create) = unsafe { library.get::<CreateHash>(*name) } {
            // SAFETY: the options are as C++ lays them out, and it only reads them.
            let table = unsafe { create(told, slots, threads) };
            return Ok(NonNull::new(table).map(Object::Hash));
        }
    }
    // SAFETY: PiBench's header says that it is of this type.
    let create = unsafe { library.get::<Create>(b"create_tree") }.map_err(Error::Symbol)?;
    // SAFETY: as before.
    Ok(NonNull::new(unsafe { create(told) }).map(Object::Tree))
}

fn tree_functions(tree: NonNull<Tree>) -> &'static Functions {
    // SAFETY: an object of a class with virtual functions starts with where their table is. It lasts as long as the library,
    // which the only callers, a plug-in and what borrows it, do not outlive.
    unsafe { &*(*tree.as_ptr()).table }
}

fn hash_functions(table: NonNull<HashTable>) -> &'static HashFunctions {
    // SAFETY: as for a tree.
    unsafe { &*(*table.as_ptr()).table }
}

/// One thread that calls a plug-in. The study's tables are told its number: below that of threads, from the first caller on.
#[derive(Debug)]
pub struct Caller<'a> {
    plugin: &'a Plugin,
    number: u32,
    inserts: u32,
    /// Whether the library knows of this thread's number.
    is_known: bool,
}

impl Caller<'_> {
    /// The object. A table of the study's is told of the thread before its first call.
    fn object(&mut self) -> Object {
        if let (false, Object::Hash(table)) = (self.is_known, self.plugin.object) {
            let number = c_int::try_from(self.number).unwrap_or(c_int::MAX);
            // SAFETY: the table is alive.
            unsafe { (hash_functions(table).thread_ini)(table.as_ptr(), number) };
            self.is_known = true;
        }
        self.plugin.object
    }

    /// The value under a key: the number it begins with.
    #[must_use]
    pub fn find(&mut self, key: u64) -> Option<u64> {
        let (key, mut value) = (self.plugin.key(key), [0; MOST_BYTES]);
        let out = value.as_mut_ptr().cast::<c_char>();
        // SAFETY: the object is alive; there is room for the value's bytes, which are as many as it was told.
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
        let (number, _) = value.split_first_chunk().expect("it is longer");
        (found != 0).then_some(u64::from_le_bytes(*number))
    }

    /// Stores a value under a key that has none; whether it had none.
    #[must_use]
    pub fn insert(&mut self, key: u64, value: u64) -> bool {
        let (key, value) = (self.plugin.key(key), self.plugin.value(value));
        // SAFETY: the object is alive; both have as many bytes as it was told.
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

    /// Replaces the value under a key; whether there was one.
    #[must_use]
    pub fn update(&mut self, key: u64, value: u64) -> bool {
        let (key, value) = (self.plugin.key(key), self.plugin.value(value));
        // SAFETY: as for an insert.
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

    /// Removes a key; whether it was there.
    #[must_use]
    pub fn remove(&mut self, key: u64) -> bool {
        let key = self.plugin.key(key);
        // SAFETY: the object is alive; the key has as many bytes as it was told.
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

    /// Has up to `count` keys found in order from one on; how many were. The study's tables have no order: none.
    #[must_use]
    pub fn scan(&mut self, key: u64, count: u32) -> u32 {
        let Object::Tree(tree) = self.object() else {
            return 0;
        };
        let (key, mut values) = (self.plugin.key(key), ptr::null_mut());
        let count = c_int::try_from(count).unwrap_or(c_int::MAX);
        let scan = tree_functions(tree).scan;
        // SAFETY: the tree is alive; what it finds is in memory of its own, and not looked at.
        let found = unsafe { scan(tree.as_ptr(), key.at(), key.len, count, &raw mut values) };
        u32::try_from(found).unwrap_or(0)
    }
}

/// A key or a value as a library is told it.
struct Bytes {
    bytes: [u8; MOST_BYTES],
    len: usize,
}

impl Bytes {
    fn at(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        // SAFETY: it is alive, and nobody calls it any more.
        unsafe {
            match self.object {
                Object::Tree(tree) => (tree_functions(tree).delete)(tree.as_ptr()),
                Object::Hash(table) => (hash_functions(table).delete)(table.as_ptr()),
            }
        }
    }
}
