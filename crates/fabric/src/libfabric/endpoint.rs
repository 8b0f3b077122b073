//! [`Endpoint`]: one endpoint of a provider with all objects that it needs, for one thread.
//!
//! ```text
//!   fabric ── domain ─┬─ completion queue, with a descriptor to wait on
//!                     ├─ address vector
//!                     ├─ endpoint
//!                     └─ memory registration, on a memory server
//! ```
//!
//! FI-ENDPOINT-1  An endpoint has a domain of its own. So a call on it makes no progress on another endpoint.
//! FI-ENDPOINT-2  The objects are closed in this order: registration, endpoint, address vector, completion queue, domain, fabric.
//!     After the registration is closed, no verb of a peer finds memory. After the endpoint is closed, the library uses no buffer of
//!     an operation.

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::LibfabricError;
use super::abi::{
    AvAttr, CqAttr, CqEntry, CqErrEntry, FI_AV_TABLE, FI_CQ_FORMAT_CONTEXT, FI_EAGAIN, FI_EAVAIL,
    FI_ENABLE, FI_GETWAIT, FI_MR_PROV_KEY, FI_MR_VIRT_ADDR, FI_NOT_IMPLEMENTED, FI_RECV,
    FI_REMOTE_READ, FI_REMOTE_WRITE, FI_TRANSMIT, FI_WAIT_FD, FiAddr, Fid, FidAv, FidCq, FidDomain,
    FidEp, FidFabric, FidMr,
};
use super::library::{Library, ProviderInfo};

/// Maximum bytes of an endpoint's address.
pub(super) const ADDRESS_BYTES_MAX: usize = 512;

/// An object of the library, which is closed when it is dropped. All types of objects begin with [`Fid`].
struct Object<T> {
    object: NonNull<T>,
    library: Arc<Library>,
}

impl<T> Object<T> {
    /// Opens an object by `open`, which stores a pointer to it or returns an error.
    fn open(
        library: &Arc<Library>,
        doing: &'static str,
        open: impl FnOnce(*mut *mut T) -> c_int,
    ) -> Result<Object<T>, LibfabricError> {
        let mut object = ptr::null_mut();
        let code = open(&raw mut object);
        match NonNull::new(object).filter(|_| code == 0) {
            Some(object) => Ok(Object {
                object,
                library: Arc::clone(library),
            }),
            None => Err(library.error(doing, code.into())),
        }
    }

    fn as_ptr(&self) -> *mut T {
        self.object.as_ptr()
    }

    fn fid(&self) -> *mut Fid {
        self.object.as_ptr().cast()
    }

    fn check(&self, doing: &'static str, code: c_int) -> Result<(), LibfabricError> {
        match code {
            0 => Ok(()),
            code => Err(self.library.error(doing, code.into())),
        }
    }

    /// Binds `other` to this object.
    fn bind<U>(
        &self,
        doing: &'static str,
        other: &Object<U>,
        flags: u64,
    ) -> Result<(), LibfabricError> {
        // SAFETY: both are open, and `other` is closed after this object (FI-ENDPOINT-2).
        let code = unsafe { ((*(*self.fid()).ops).bind)(self.fid(), other.fid(), flags) };
        self.check(doing, code)
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        // SAFETY: an open object that nothing uses any more. An error leaves it open, which loses its memory.
        let _ = unsafe { ((*(*self.fid()).ops).close)(self.fid()) };
    }
}

/// Memory of this process that peers may read and change.
#[derive(Clone, Copy)]
pub(super) struct Region<'m> {
    start: NonNull<u8>,
    bytes: usize,
    _memory: PhantomData<&'m ()>,
}

impl<'m> Region<'m> {
    /// # Safety
    /// The `bytes` bytes at `start` are mapped and may be read and written by any thread as long as `'m`.
    pub(super) unsafe fn new(start: NonNull<u8>, bytes: usize) -> Region<'m> {
        Region {
            start,
            bytes,
            _memory: PhantomData,
        }
    }
}

/// What peers need to use the registered memory of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RegionName {
    /// Address of its first byte.
    pub(super) base: u64,
    pub(super) key: u64,
}

/// An operation that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Completion {
    /// The address that the operation was posted with.
    pub(super) context: usize,
    pub(super) is_ok: bool,
}

/// An endpoint and its objects. It exists at most as long as the memory `'m` that it has registered.
pub(super) struct Endpoint<'m> {
    // The order of these fields is the order in which they are closed (FI-ENDPOINT-2).
    registration: Option<Object<FidMr>>,
    endpoint: Object<FidEp>,
    vector: Object<FidAv>,
    queue: Object<FidCq>,
    _domain: Object<FidDomain>,
    fabric: Object<FidFabric>,
    wait: RawFd,
    base: u64,
    info: ProviderInfo,
    _memory: PhantomData<&'m ()>,
}

impl<'m> Endpoint<'m> {
    /// Opens an endpoint of the provider `info`. Peers may use `region`, under a key that is `key` if programs select keys.
    ///
    /// # Errors
    /// The provider has no resources, or cannot wait by a descriptor.
    pub(super) fn open(
        info: ProviderInfo,
        region: Option<(Region<'m>, u64)>,
    ) -> Result<Endpoint<'m>, LibfabricError> {
        let library = Arc::clone(&info.library);
        let open_fabric = library.open_fabric;
        // SAFETY: the attributes are those of the provider, and the pointers are valid during the call. Here and below, an object
        // is opened by the open objects that it needs, which are closed after it.
        let fabric = Object::<FidFabric>::open(&library, "open the fabric", |to| unsafe {
            open_fabric((*info.as_ptr()).fabric_attr, to, ptr::null_mut())
        })?;
        // SAFETY: see above.
        let domain = Object::<FidDomain>::open(&library, "open a domain", |to| unsafe {
            ((*(*fabric.as_ptr()).ops).domain)(fabric.as_ptr(), info.as_ptr(), to, ptr::null_mut())
        })?;
        let queue = open_queue(&library, &domain, &info)?;
        let wait = wait_descriptor(&queue).map_err(|error| without_descriptor(error, &info))?;
        let vector = open_vector(&library, &domain)?;
        // SAFETY: see above.
        let endpoint = Object::<FidEp>::open(&library, "open an endpoint", |to| unsafe {
            let domain = domain.as_ptr();
            ((*(*domain).ops).endpoint)(domain, info.as_ptr(), to, ptr::null_mut())
        })?;
        endpoint.bind("bind the address vector", &vector, 0)?;
        endpoint.bind("bind the completion queue", &queue, FI_TRANSMIT | FI_RECV)?;
        // SAFETY: the command has no argument.
        let code = unsafe {
            let fid = endpoint.fid();
            ((*(*fid).ops).control)(fid, FI_ENABLE, ptr::null_mut())
        };
        endpoint.check("enable the endpoint", code)?;
        let (registration, base) = match region {
            None => (None, 0),
            Some((region, key)) => {
                let registration = register(&library, &domain, &info, region, key)?;
                let base = match info.has_mr_mode(FI_MR_VIRT_ADDR) {
                    true => region.start.as_ptr().addr() as u64,
                    false => 0,
                };
                (Some(registration), base)
            }
        };
        Ok(Endpoint {
            registration,
            endpoint,
            vector,
            queue,
            _domain: domain,
            fabric,
            wait,
            base,
            info,
            _memory: PhantomData,
        })
    }

    pub(super) fn info(&self) -> &ProviderInfo {
        &self.info
    }

    pub(super) fn raw(&self) -> *mut FidEp {
        self.endpoint.as_ptr()
    }

    /// Returns the name of the registered memory.
    pub(super) fn region(&self) -> Option<RegionName> {
        let registration = self.registration.as_ref()?;
        Some(RegionName {
            base: self.base,
            // SAFETY: an open registration, whose key does not change.
            key: unsafe { (*registration.as_ptr()).key },
        })
    }

    /// Returns the endpoint's address, in the format of its provider.
    ///
    /// # Errors
    /// It has none, or one that is longer than 512 bytes.
    pub(super) fn address(&self) -> Result<Vec<u8>, LibfabricError> {
        let mut address = vec![0; ADDRESS_BYTES_MAX];
        let mut len = address.len();
        // SAFETY: the buffer has `len` bytes. An endpoint without connection management has no table.
        let code = unsafe {
            let cm = (*self.endpoint.as_ptr()).cm;
            let get_name = (*cm).getname;
            get_name(
                self.endpoint.fid(),
                address.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        self.endpoint.check("read the endpoint's address", code)?;
        address.truncate(len);
        Ok(address)
    }

    /// Makes the endpoint with the address `peer` reachable. Returns the name by which operations use it.
    ///
    /// # Errors
    /// The provider does not accept the address.
    pub(super) fn add_peer(&self, peer: &[u8]) -> Result<FiAddr, LibfabricError> {
        let mut padded = peer.to_vec();
        // A provider reads as many bytes as its format has.
        padded.resize(ADDRESS_BYTES_MAX, 0);
        let mut name: FiAddr = 0;
        let vector = self.vector.as_ptr();
        // SAFETY: one address, in a buffer that is as long as any address, and a place for one name.
        let added = unsafe {
            let insert = (*(*vector).ops).insert;
            insert(
                vector,
                padded.as_ptr().cast(),
                1,
                &raw mut name,
                0,
                ptr::null_mut(),
            )
        };
        match added {
            1 => Ok(name),
            code => {
                let library = &self.vector.library;
                Err(library.error(
                    "use the address of the memory server's endpoint",
                    code.min(0).into(),
                ))
            }
        }
    }

    /// Executes the verbs of peers that have arrived, and appends the operations of this endpoint that have ended to `ended`.
    pub(super) fn progress(&self, ended: &mut Vec<Completion>) {
        const ENTRIES: usize = 32;
        let queue = self.queue.as_ptr();
        let mut entries = [CqEntry {
            op_context: ptr::null_mut(),
        }; ENTRIES];
        loop {
            // SAFETY: an open queue of this format, and a buffer for so many entries.
            let read = unsafe {
                let read = (*(*queue).ops).read;
                read(queue, entries.as_mut_ptr().cast(), ENTRIES)
            };
            if read as i64 == -FI_EAVAIL {
                match self.read_error(ended) {
                    true => continue,
                    false => return,
                }
            }
            let count = usize::try_from(read).unwrap_or(0);
            ended.extend(entries[..count].iter().map(|entry| Completion {
                context: entry.op_context.addr(),
                is_ok: true,
            }));
            if count < ENTRIES {
                return;
            }
        }
    }

    /// Returns whether the thread may wait for the descriptor. Otherwise [`Endpoint::progress`] has something to do.
    pub(super) fn may_wait(&self) -> bool {
        let mut waits = [self.queue.fid()];
        let fabric = self.fabric.as_ptr();
        // SAFETY: an open fabric, and one open object of it.
        let may_wait = unsafe { ((*(*fabric).ops).trywait)(fabric, waits.as_mut_ptr(), 1) };
        i64::from(may_wait) != -FI_EAGAIN
    }

    /// Appends an operation that has failed. Returns whether there was one.
    fn read_error(&self, ended: &mut Vec<Completion>) -> bool {
        let mut entry = CqErrEntry {
            op_context: ptr::null_mut(),
            flags: 0,
            len: 0,
            buf: ptr::null_mut(),
            data: 0,
            tag: 0,
            olen: 0,
            err: 0,
            prov_errno: 0,
            err_data: ptr::null_mut(),
            err_data_size: 0,
        };
        let queue = self.queue.as_ptr();
        // SAFETY: an open queue, and an entry of the requested version that asks for no further data.
        let read = unsafe { ((*(*queue).ops).readerr)(queue, &raw mut entry, 0) };
        if read > 0 {
            ended.push(Completion {
                context: entry.op_context.addr(),
                is_ok: false,
            });
        }
        read > 0
    }

    /// Returns the descriptor that becomes readable when there is something to do. It must be waited for only after
    /// [`Endpoint::may_wait`] has returned true.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the completion queue keeps it open.
        unsafe { BorrowedFd::borrow_raw(self.wait) }
    }
}

fn open_queue(
    library: &Arc<Library>,
    domain: &Object<FidDomain>,
    provider: &ProviderInfo,
) -> Result<Object<FidCq>, LibfabricError> {
    let mut attr = CqAttr {
        size: 0,
        flags: 0,
        format: FI_CQ_FORMAT_CONTEXT,
        wait_obj: FI_WAIT_FD,
        signaling_vector: 0,
        wait_cond: 0,
        wait_set: ptr::null_mut(),
    };
    // SAFETY: an open domain, and attributes that are valid during the call.
    let opened = Object::open(library, "open a completion queue", |to| unsafe {
        let domain = domain.as_ptr();
        ((*(*domain).ops).cq_open)(domain, &raw mut attr, to, ptr::null_mut())
    });
    opened.map_err(|error| without_descriptor(error, provider))
}

/// Returns the error of a provider that has no descriptor to wait for, if `error` says so.
fn without_descriptor(error: LibfabricError, provider: &ProviderInfo) -> LibfabricError {
    match error {
        LibfabricError::Call {
            code: FI_NOT_IMPLEMENTED,
            ..
        } => LibfabricError::NoDescriptor {
            provider: provider.name(),
        },
        error => error,
    }
}

fn wait_descriptor(queue: &Object<FidCq>) -> Result<RawFd, LibfabricError> {
    let mut wait: c_int = -1;
    // SAFETY: the command stores a descriptor, because the queue was opened with one.
    let code = unsafe {
        let fid = queue.fid();
        let to: *mut c_int = &raw mut wait;
        ((*(*fid).ops).control)(fid, FI_GETWAIT, to.cast::<c_void>())
    };
    queue.check("find the descriptor of the completion queue", code)?;
    Ok(wait)
}

fn open_vector(
    library: &Arc<Library>,
    domain: &Object<FidDomain>,
) -> Result<Object<FidAv>, LibfabricError> {
    let mut attr = AvAttr {
        av_type: FI_AV_TABLE,
        rx_ctx_bits: 0,
        count: 0,
        ep_per_node: 0,
        name: ptr::null(),
        map_addr: ptr::null_mut(),
        flags: 0,
    };
    // SAFETY: an open domain, and attributes that are valid during the call.
    Object::open(library, "open an address vector", |to| unsafe {
        let domain = domain.as_ptr();
        ((*(*domain).ops).av_open)(domain, &raw mut attr, to, ptr::null_mut())
    })
}

fn register(
    library: &Arc<Library>,
    domain: &Object<FidDomain>,
    info: &ProviderInfo,
    region: Region<'_>,
    key: u64,
) -> Result<Object<FidMr>, LibfabricError> {
    let key = match info.has_mr_mode(FI_MR_PROV_KEY) {
        true => 0,
        false if info.key_bytes() < 8 => key & ((1 << (8 * info.key_bytes())) - 1),
        false => key,
    };
    // SAFETY: the region may be read and changed as long as the endpoint exists, which closes the registration.
    Object::open(library, "register the memory", |to| unsafe {
        let domain = domain.as_ptr();
        let access = FI_REMOTE_READ | FI_REMOTE_WRITE;
        ((*(*domain).mr).reg)(
            domain.cast(),
            region.start.as_ptr().cast(),
            region.bytes,
            access,
            0,
            key,
            0,
            to,
            ptr::null_mut(),
        )
    })
}
