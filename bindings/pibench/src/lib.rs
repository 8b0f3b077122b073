//! PiBench's plug-ins (Lersch et al., "Evaluating Persistent Memory Range Indexes", VLDB '20): how libraries
//! written against its C++ header are called from here, and what one of ours must look like.
//!
//! `farbank bench index --plugin x.so` measures such a library; `tables/` is one that has our tables in it, for
//! PiBench itself or any other program that loads its plug-ins.

pub mod abi;

use std::ffi::{CString, OsStr, c_char, c_int};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};

use abi::{Create, CxxString, Functions, Tree, TreeOptions};
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
    /// It has no `create_tree`.
    Symbol(libloading::Error),
    /// Its `create_tree` made nothing.
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
                "it is no plug-in for PiBench, which has a function create_tree: {}",
                told(why)
            ),
            Error::Nothing => f.write_str("its create_tree returned null; it may say why above"),
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
    /// What each key begins with.
    pub key_prefix: &'a str,
    /// Bytes of a key after that.
    pub key_bytes: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
}

/// An index made by a library.
///
/// A key is its prefix and, as PiBench makes them, a number: the low bytes of it, the lowest first, or all eight after
/// zeros. A value is a number's low bytes, or all eight before zeros.
///
/// All its functions may be called by several threads at once: that is what PiBench asks of plug-ins. An exception that
/// leaves one of them ends the process.
#[derive(Debug)]
pub struct Plugin {
    tree: NonNull<Tree>,
    prefix: Box<[u8]>,
    /// Of a key, without its prefix.
    key_bytes: usize,
    value_bytes: usize,
    // After the tree: its functions are in here.
    _library: Library,
}

// SAFETY: PiBench calls one object from all its threads at once, so plug-ins are made for that.
unsafe impl Send for Plugin {}
// SAFETY: as before.
unsafe impl Sync for Plugin {}

impl Plugin {
    /// Loads a library, and has it make an index.
    ///
    /// The library is trusted like a program that somebody starts: it is written against PiBench's header, of commit
    /// a78171a or one with the same virtual functions, and compiled with libstdc++, and what it does to this process is
    /// what who named it wanted.
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
        // SAFETY: PiBench's header says that it is of this type.
        let create = unsafe { library.get::<Create>(b"create_tree") }.map_err(Error::Symbol)?;
        let options = TreeOptions {
            key_bytes: prefix.len() + key_bytes,
            value_bytes,
            pool_path: CxxString::of(&path),
            pool_bytes: usize::try_from(options.pool_bytes).unwrap_or(usize::MAX),
            threads: options.threads as usize,
        };
        // SAFETY: the options are as C++ lays them out, and it only reads them.
        let tree = NonNull::new(unsafe { create(&raw const options) }).ok_or(Error::Nothing)?;
        Ok(Plugin {
            tree,
            prefix: prefix.into(),
            key_bytes,
            value_bytes,
            _library: library,
        })
    }

    fn functions(&self) -> &Functions {
        // SAFETY: an object of a class with virtual functions starts with where their table is, which lasts as long as the library.
        unsafe { &*(*self.tree.as_ptr()).table }
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

    /// The value under a key: the number it begins with.
    #[must_use]
    pub fn find(&self, key: u64) -> Option<u64> {
        let (key, mut value) = (self.key(key), [0; MOST_BYTES]);
        let out = value.as_mut_ptr().cast::<c_char>();
        // SAFETY: the tree is alive; there is room for the value's bytes, which are as many as it was told.
        let found = unsafe { (self.functions().find)(self.tree.as_ptr(), key.at(), key.len, out) };
        let (number, _) = value.split_first_chunk().expect("it is longer");
        found.then_some(u64::from_le_bytes(*number))
    }

    /// Stores a value under a key that has none; whether it had none.
    #[must_use]
    pub fn insert(&self, key: u64, value: u64) -> bool {
        self.write(self.functions().insert, key, value)
    }

    /// Replaces the value under a key; whether there was one.
    #[must_use]
    pub fn update(&self, key: u64, value: u64) -> bool {
        self.write(self.functions().update, key, value)
    }

    fn write(&self, write: abi::Write, key: u64, value: u64) -> bool {
        let (key, mut bytes) = (self.key(key), [0; MOST_BYTES]);
        let low = self.value_bytes.min(WORD);
        bytes[..low].copy_from_slice(&value.to_le_bytes()[..low]);
        let (tree, value) = (self.tree.as_ptr(), bytes.as_ptr().cast());
        // SAFETY: the tree is alive; both have as many bytes as it was told.
        unsafe { write(tree, key.at(), key.len, value, self.value_bytes) }
    }

    /// Removes a key; whether it was there.
    #[must_use]
    pub fn remove(&self, key: u64) -> bool {
        let key = self.key(key);
        // SAFETY: the tree is alive.
        unsafe { (self.functions().remove)(self.tree.as_ptr(), key.at(), key.len) }
    }

    /// Has up to `count` keys found in order from one on; how many were.
    #[must_use]
    pub fn scan(&self, key: u64, count: u32) -> u32 {
        let (key, mut values) = (self.key(key), ptr::null_mut());
        let (tree, count) = (
            self.tree.as_ptr(),
            c_int::try_from(count).unwrap_or(c_int::MAX),
        );
        // SAFETY: the tree is alive; what it finds is in memory of its own, and not looked at.
        let found =
            unsafe { (self.functions().scan)(tree, key.at(), key.len, count, &raw mut values) };
        u32::try_from(found).unwrap_or(0)
    }
}

/// A key as a library is told it.
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
        unsafe { (self.functions().delete)(self.tree.as_ptr()) }
    }
}
