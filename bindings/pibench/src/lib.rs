//! PiBench's plug-ins (Lersch et al., "Evaluating Persistent Memory Range Indexes", VLDB '20): how libraries
//! written against its C++ header are called from here, and what one of ours must look like.
//!
//! `farbank bench index --plugin x.so` measures such a library; `tables/` is one that has our tables in it, for
//! PiBench itself or any other program that loads its plug-ins.

pub mod abi;

use std::ffi::{CString, OsStr, c_char};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

use abi::{Create, CxxString, Functions, Tree, TreeOptions};
use libloading::Library;

/// Bytes of a key, and of a value.
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
        }
    }
}

impl std::error::Error for Error {}

/// What the loader said, rather than which of its functions said it.
fn told(why: &libloading::Error) -> String {
    let said = std::error::Error::source(why);
    said.map_or_else(|| why.to_string(), ToString::to_string)
}

/// What an index of a library's is told at its start. Keys and values have 8 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Where its pool is to be; empty: where it likes.
    pub pool: &'a Path,
    /// Bytes of its pool; 0: as it likes.
    pub pool_bytes: u64,
    /// Threads that will call.
    pub threads: u32,
}

/// An index made by a library.
///
/// All its functions may be called by several threads at once: that is what PiBench asks of plug-ins. An exception that
/// leaves one of them ends the process.
#[derive(Debug)]
pub struct Plugin {
    tree: NonNull<Tree>,
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
        // SAFETY: none can be proved of other people's code; see above.
        let library = unsafe { Library::new(library) }.map_err(Error::Library)?;
        // SAFETY: PiBench's header says that it is of this type.
        let create = unsafe { library.get::<Create>(b"create_tree") }.map_err(Error::Symbol)?;
        let options = TreeOptions {
            key_bytes: WORD,
            value_bytes: WORD,
            pool_path: CxxString::of(&path),
            pool_bytes: usize::try_from(options.pool_bytes).unwrap_or(usize::MAX),
            threads: options.threads as usize,
        };
        // SAFETY: the options are as C++ lays them out, and it only reads them.
        let tree = NonNull::new(unsafe { create(&raw const options) }).ok_or(Error::Nothing)?;
        Ok(Plugin {
            tree,
            _library: library,
        })
    }

    fn functions(&self) -> &Functions {
        // SAFETY: an object of a class with virtual functions starts with where their table is, which lasts as long as the library.
        unsafe { &*(*self.tree.as_ptr()).table }
    }

    /// The value under a key.
    #[must_use]
    pub fn find(&self, key: u64) -> Option<u64> {
        let (key, mut value) = (key.to_le_bytes(), [0; WORD]);
        let out = value.as_mut_ptr().cast::<c_char>();
        // SAFETY: the tree is alive; a value has 8 bytes, which is what it was told.
        let found = unsafe { (self.functions().find)(self.tree.as_ptr(), start(&key), WORD, out) };
        found.then_some(u64::from_le_bytes(value))
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
        let (key, value) = (key.to_le_bytes(), value.to_le_bytes());
        // SAFETY: the tree is alive; both have the 8 bytes it was told.
        unsafe { write(self.tree.as_ptr(), start(&key), WORD, start(&value), WORD) }
    }

    /// Removes a key; whether it was there.
    #[must_use]
    pub fn remove(&self, key: u64) -> bool {
        let key = key.to_le_bytes();
        // SAFETY: the tree is alive.
        unsafe { (self.functions().remove)(self.tree.as_ptr(), start(&key), WORD) }
    }
}

fn start(bytes: &[u8; WORD]) -> *const c_char {
    bytes.as_ptr().cast()
}

impl Drop for Plugin {
    fn drop(&mut self) {
        // SAFETY: it is alive, and nobody calls it any more.
        unsafe { (self.functions().delete)(self.tree.as_ptr()) }
    }
}
