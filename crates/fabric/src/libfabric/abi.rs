//! The part of libfabric's C interface that the fabric uses: structures, constants, tables of functions.
//!
//! These are facts of `rdma/fabric.h` and its companions in libfabric 1.17 (Debian 12). The suite `tree-libfabric` compares each
//! size and offset with the installed headers ([`layouts`]).
//!
//! # Versions
//! The program asks for [`API_VERSION`]. Later libraries, also 2.x, append fields to the structures and functions to the tables, and give each
//! exported function a version of its symbol. Fields keep their offsets. The library itself allocates all structures that it
//! may have to extend (`fi_dupinfo` of null returns an empty `fi_info`). The others ([`CqAttr`], [`AvAttr`])
//! are read by the library up to the size of the requested version.
//!
//! Most of libfabric's interface is inline functions in C headers, which call through tables of functions. A provider
//! may allocate only the beginning of a table, whose `size` says how long it is ([`has_op`]).

use std::ffi::{c_char, c_int, c_void};

/// Version of the interface that the program asks for: 1.17 in the format of `FI_VERSION`.
pub(super) const API_VERSION: u32 = 1 << 16 | 17;

pub(super) const FI_MSG: u64 = 1 << 1;
pub(super) const FI_RMA: u64 = 1 << 2;
pub(super) const FI_ATOMIC: u64 = 1 << 4;
pub(super) const FI_READ: u64 = 1 << 8;
pub(super) const FI_WRITE: u64 = 1 << 9;
pub(super) const FI_RECV: u64 = 1 << 10;
pub(super) const FI_SEND: u64 = 1 << 11;
pub(super) const FI_TRANSMIT: u64 = FI_SEND;
pub(super) const FI_REMOTE_READ: u64 = 1 << 12;
pub(super) const FI_REMOTE_WRITE: u64 = 1 << 13;
pub(super) const FI_DELIVERY_COMPLETE: u64 = 1 << 28;
pub(super) const FI_SOURCE: u64 = 1 << 57;
pub(super) const FI_CONTEXT: u64 = 1 << 59;
pub(super) const FI_CONTEXT2: u64 = 1 << 52;

pub(super) const FI_ORDER_WAW: u64 = 1 << 4;
pub(super) const FI_ORDER_ATOMIC_WAW: u64 = 1 << 39;

pub(super) const FI_MR_VIRT_ADDR: c_int = 1 << 4;
pub(super) const FI_MR_ALLOCATED: c_int = 1 << 5;
pub(super) const FI_MR_PROV_KEY: c_int = 1 << 6;

pub(super) const FI_EP_RDM: u32 = 3;
pub(super) const FI_AV_TABLE: u32 = 2;
pub(super) const FI_PROGRESS_MANUAL: u32 = 2;
pub(super) const FI_THREAD_DOMAIN: u32 = 3;
pub(super) const FI_CQ_FORMAT_CONTEXT: u32 = 1;
pub(super) const FI_WAIT_FD: u32 = 3;
pub(super) const FI_GETWAIT: c_int = 5;
pub(super) const FI_ENABLE: c_int = 6;

pub(super) const FI_UINT8: c_int = 1;
pub(super) const FI_UINT64: c_int = 7;
pub(super) const FI_SUM: c_int = 2;
pub(super) const FI_ATOMIC_READ: c_int = 10;
pub(super) const FI_ATOMIC_WRITE: c_int = 11;
pub(super) const FI_CSWAP: c_int = 12;

pub(super) const FI_EAGAIN: i64 = 11;
pub(super) const FI_ENOSYS: i64 = 38;
/// The result of a call that the provider does not implement.
pub(super) const FI_NOT_IMPLEMENTED: i64 = -FI_ENOSYS;
pub(super) const FI_EAVAIL: i64 = 259;

/// A field or function that the fabric does not use.
type Unused = *const c_void;

/// Address of a peer in an address vector.
pub(super) type FiAddr = u64;

#[repr(C)]
pub(super) struct Fid {
    pub(super) fclass: usize,
    pub(super) context: *mut c_void,
    pub(super) ops: *const FidOps,
}

#[repr(C)]
pub(super) struct FidOps {
    pub(super) size: usize,
    pub(super) close: unsafe extern "C" fn(*mut Fid) -> c_int,
    pub(super) bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
    pub(super) control: unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int,
}

#[repr(C)]
pub(super) struct TxAttr {
    pub(super) caps: u64,
    pub(super) mode: u64,
    pub(super) op_flags: u64,
    pub(super) msg_order: u64,
    pub(super) comp_order: u64,
    pub(super) inject_size: usize,
    pub(super) size: usize,
}

#[repr(C)]
pub(super) struct RxAttr {
    pub(super) caps: u64,
    pub(super) mode: u64,
    pub(super) op_flags: u64,
    pub(super) msg_order: u64,
}

#[repr(C)]
pub(super) struct EpAttr {
    pub(super) ep_type: u32,
    pub(super) protocol: u32,
    pub(super) protocol_version: u32,
    pub(super) max_msg_size: usize,
    pub(super) msg_prefix_size: usize,
    pub(super) max_order_raw_size: usize,
    pub(super) max_order_war_size: usize,
    pub(super) max_order_waw_size: usize,
}

#[repr(C)]
pub(super) struct DomainAttr {
    pub(super) domain: *mut FidDomain,
    pub(super) name: *mut c_char,
    pub(super) threading: u32,
    pub(super) control_progress: u32,
    pub(super) data_progress: u32,
    pub(super) resource_mgmt: u32,
    pub(super) av_type: u32,
    pub(super) mr_mode: c_int,
    pub(super) mr_key_size: usize,
}

#[repr(C)]
pub(super) struct FabricAttr {
    pub(super) fabric: *mut FidFabric,
    pub(super) name: *mut c_char,
    pub(super) prov_name: *mut c_char,
    pub(super) prov_version: u32,
    pub(super) api_version: u32,
}

#[repr(C)]
pub(super) struct Info {
    pub(super) next: *mut Info,
    pub(super) caps: u64,
    pub(super) mode: u64,
    pub(super) addr_format: u32,
    pub(super) src_addrlen: usize,
    pub(super) dest_addrlen: usize,
    pub(super) src_addr: *mut c_void,
    pub(super) dest_addr: *mut c_void,
    pub(super) handle: *mut Fid,
    pub(super) tx_attr: *mut TxAttr,
    pub(super) rx_attr: *mut RxAttr,
    pub(super) ep_attr: *mut EpAttr,
    pub(super) domain_attr: *mut DomainAttr,
    pub(super) fabric_attr: *mut FabricAttr,
}

#[repr(C)]
pub(super) struct FidFabric {
    pub(super) fid: Fid,
    pub(super) ops: *const FabricOps,
}

#[repr(C)]
pub(super) struct FabricOps {
    pub(super) size: usize,
    pub(super) domain:
        unsafe extern "C" fn(*mut FidFabric, *mut Info, *mut *mut FidDomain, *mut c_void) -> c_int,
    passive_ep: Unused,
    eq_open: Unused,
    wait_open: Unused,
    pub(super) trywait: unsafe extern "C" fn(*mut FidFabric, *mut *mut Fid, c_int) -> c_int,
}

#[repr(C)]
pub(super) struct FidDomain {
    pub(super) fid: Fid,
    pub(super) ops: *const DomainOps,
    pub(super) mr: *const MrOps,
}

#[repr(C)]
pub(super) struct DomainOps {
    pub(super) size: usize,
    pub(super) av_open:
        unsafe extern "C" fn(*mut FidDomain, *mut AvAttr, *mut *mut FidAv, *mut c_void) -> c_int,
    pub(super) cq_open:
        unsafe extern "C" fn(*mut FidDomain, *mut CqAttr, *mut *mut FidCq, *mut c_void) -> c_int,
    pub(super) endpoint:
        unsafe extern "C" fn(*mut FidDomain, *mut Info, *mut *mut FidEp, *mut c_void) -> c_int,
}

#[repr(C)]
pub(super) struct MrOps {
    pub(super) size: usize,
    pub(super) reg: unsafe extern "C" fn(
        *mut Fid,
        *const c_void,
        usize,
        u64,
        u64,
        u64,
        u64,
        *mut *mut FidMr,
        *mut c_void,
    ) -> c_int,
}

#[repr(C)]
pub(super) struct FidMr {
    pub(super) fid: Fid,
    pub(super) mem_desc: *mut c_void,
    pub(super) key: u64,
}

#[repr(C)]
pub(super) struct AvAttr {
    pub(super) av_type: u32,
    pub(super) rx_ctx_bits: c_int,
    pub(super) count: usize,
    pub(super) ep_per_node: usize,
    pub(super) name: *const c_char,
    pub(super) map_addr: *mut c_void,
    pub(super) flags: u64,
}

#[repr(C)]
pub(super) struct FidAv {
    pub(super) fid: Fid,
    pub(super) ops: *const AvOps,
}

#[repr(C)]
pub(super) struct AvOps {
    pub(super) size: usize,
    pub(super) insert: unsafe extern "C" fn(
        *mut FidAv,
        *const c_void,
        usize,
        *mut FiAddr,
        u64,
        *mut c_void,
    ) -> c_int,
}

#[repr(C)]
pub(super) struct CqAttr {
    pub(super) size: usize,
    pub(super) flags: u64,
    pub(super) format: u32,
    pub(super) wait_obj: u32,
    pub(super) signaling_vector: c_int,
    pub(super) wait_cond: u32,
    pub(super) wait_set: *mut c_void,
}

#[repr(C)]
pub(super) struct FidCq {
    pub(super) fid: Fid,
    pub(super) ops: *const CqOps,
}

#[repr(C)]
pub(super) struct CqOps {
    pub(super) size: usize,
    pub(super) read: unsafe extern "C" fn(*mut FidCq, *mut c_void, usize) -> isize,
    readfrom: Unused,
    pub(super) readerr: unsafe extern "C" fn(*mut FidCq, *mut CqErrEntry, u64) -> isize,
}

/// A completion in the format [`FI_CQ_FORMAT_CONTEXT`].
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CqEntry {
    pub(super) op_context: *mut c_void,
}

#[repr(C)]
pub(super) struct CqErrEntry {
    pub(super) op_context: *mut c_void,
    pub(super) flags: u64,
    pub(super) len: usize,
    pub(super) buf: *mut c_void,
    pub(super) data: u64,
    pub(super) tag: u64,
    pub(super) olen: usize,
    pub(super) err: c_int,
    pub(super) prov_errno: c_int,
    pub(super) err_data: *mut c_void,
    pub(super) err_data_size: usize,
}

#[repr(C)]
pub(super) struct FidEp {
    pub(super) fid: Fid,
    ops: Unused,
    pub(super) cm: *const CmOps,
    msg: Unused,
    rma: Unused,
    tagged: Unused,
    pub(super) atomic: *const AtomicOps,
}

#[repr(C)]
pub(super) struct CmOps {
    pub(super) size: usize,
    setname: Unused,
    pub(super) getname: unsafe extern "C" fn(*mut Fid, *mut c_void, *mut usize) -> c_int,
}

/// Local elements of an atomic.
#[repr(C)]
pub(super) struct Ioc {
    pub(super) addr: *mut c_void,
    pub(super) count: usize,
}

/// Elements of an atomic in a peer's memory.
#[repr(C)]
pub(super) struct RmaIoc {
    pub(super) addr: u64,
    pub(super) count: usize,
    pub(super) key: u64,
}

/// An atomic with flags.
#[repr(C)]
pub(super) struct MsgAtomic {
    pub(super) msg_iov: *const Ioc,
    pub(super) desc: *mut *mut c_void,
    pub(super) iov_count: usize,
    pub(super) addr: FiAddr,
    pub(super) rma_iov: *const RmaIoc,
    pub(super) rma_iov_count: usize,
    pub(super) datatype: c_int,
    pub(super) op: c_int,
    pub(super) context: *mut c_void,
    pub(super) data: u64,
}

/// `fi_atomicmsg`.
type AtomicMsgFn = unsafe extern "C" fn(*mut FidEp, *const MsgAtomic, u64) -> isize;

/// `fi_fetch_atomic`.
type FetchAtomicFn = unsafe extern "C" fn(
    *mut FidEp,
    *const c_void,
    usize,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    FiAddr,
    u64,
    u64,
    c_int,
    c_int,
    *mut c_void,
) -> isize;

/// `fi_compare_atomic`.
type CompareAtomicFn = unsafe extern "C" fn(
    *mut FidEp,
    *const c_void,
    usize,
    *mut c_void,
    *const c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    FiAddr,
    u64,
    u64,
    c_int,
    c_int,
    *mut c_void,
) -> isize;

/// Returns the maximum count of an atomic.
pub(super) type AtomicValidFn = unsafe extern "C" fn(*mut FidEp, c_int, c_int, *mut usize) -> c_int;

#[repr(C)]
pub(super) struct AtomicOps {
    pub(super) size: usize,
    write: Unused,
    writev: Unused,
    pub(super) writemsg: AtomicMsgFn,
    inject: Unused,
    pub(super) readwrite: FetchAtomicFn,
    readwritev: Unused,
    readwritemsg: Unused,
    pub(super) compwrite: CompareAtomicFn,
    compwritev: Unused,
    compwritemsg: Unused,
    pub(super) writevalid: AtomicValidFn,
    pub(super) readwritevalid: AtomicValidFn,
    pub(super) compwritevalid: AtomicValidFn,
}

/// Memory that some providers need for each operation under way (`fi_context2`).
#[repr(C)]
pub(super) struct Context(pub(super) [*mut c_void; 8]);

pub(super) type GetInfoFn = unsafe extern "C" fn(
    u32,
    *const c_char,
    *const c_char,
    u64,
    *const Info,
    *mut *mut Info,
) -> c_int;
pub(super) type FreeInfoFn = unsafe extern "C" fn(*mut Info);
pub(super) type DupInfoFn = unsafe extern "C" fn(*const Info) -> *mut Info;
pub(super) type FabricFn =
    unsafe extern "C" fn(*mut FabricAttr, *mut *mut FidFabric, *mut c_void) -> c_int;
pub(super) type StrErrorFn = unsafe extern "C" fn(c_int) -> *const c_char;
pub(super) type VersionFn = unsafe extern "C" fn() -> u32;

/// A field of a structure of the interface, by its names in C.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FieldLayout {
    /// Name of the structure, with `struct`.
    pub structure: &'static str,
    /// Name of the field.
    pub field: &'static str,
    /// Offset in bytes.
    pub offset: usize,
}

macro_rules! fields {
    ($($c:literal = $rust:ident { $($name:ident $(= $c_name:literal)?),* $(,)? })*) => {
        vec![$($(FieldLayout {
            structure: $c,
            field: field_name!($name $($c_name)?),
            offset: std::mem::offset_of!($rust, $name),
        },)*)*]
    };
}

macro_rules! field_name {
    ($name:ident) => {
        stringify!($name)
    };
    ($name:ident $c_name:literal) => {
        $c_name
    };
}

/// Returns all fields of structures and tables that the fabric uses, to be compared with the headers.
#[must_use]
pub fn layouts() -> Vec<FieldLayout> {
    fields! {
        "struct fid" = Fid { fclass, context, ops }
        "struct fi_ops" = FidOps { size, close, bind, control }
        "struct fi_tx_attr" = TxAttr { caps, mode, op_flags, msg_order, comp_order, inject_size, size }
        "struct fi_rx_attr" = RxAttr { caps, mode, op_flags, msg_order }
        "struct fi_ep_attr" = EpAttr {
            ep_type = "type", protocol, protocol_version, max_msg_size, msg_prefix_size, max_order_raw_size,
            max_order_war_size, max_order_waw_size,
        }
        "struct fi_domain_attr" = DomainAttr {
            domain, name, threading, control_progress, data_progress, resource_mgmt, av_type, mr_mode, mr_key_size,
        }
        "struct fi_fabric_attr" = FabricAttr { fabric, name, prov_name, prov_version, api_version }
        "struct fi_info" = Info {
            next, caps, mode, addr_format, src_addrlen, dest_addrlen, src_addr, dest_addr, handle, tx_attr, rx_attr, ep_attr,
            domain_attr, fabric_attr,
        }
        "struct fid_fabric" = FidFabric { fid, ops }
        "struct fi_ops_fabric" = FabricOps { size, domain, trywait }
        "struct fid_domain" = FidDomain { fid, ops, mr }
        "struct fi_ops_domain" = DomainOps { size, av_open, cq_open, endpoint }
        "struct fi_ops_mr" = MrOps { size, reg }
        "struct fid_mr" = FidMr { fid, mem_desc, key }
        "struct fi_av_attr" = AvAttr { av_type = "type", rx_ctx_bits, count, ep_per_node, name, map_addr, flags }
        "struct fid_av" = FidAv { fid, ops }
        "struct fi_ops_av" = AvOps { size, insert }
        "struct fi_cq_attr" = CqAttr { size, flags, format, wait_obj, signaling_vector, wait_cond, wait_set }
        "struct fid_cq" = FidCq { fid, ops }
        "struct fi_ops_cq" = CqOps { size, read, readerr }
        "struct fi_cq_entry" = CqEntry { op_context }
        "struct fi_cq_err_entry" = CqErrEntry {
            op_context, flags, len, buf, data, tag, olen, err, prov_errno, err_data, err_data_size,
        }
        "struct fid_ep" = FidEp { fid, cm, atomic }
        "struct fi_ops_cm" = CmOps { size, getname }
        "struct fi_ioc" = Ioc { addr, count }
        "struct fi_rma_ioc" = RmaIoc { addr, count, key }
        "struct fi_msg_atomic" = MsgAtomic {
            msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count, datatype, op, context, data,
        }
        "struct fi_ops_atomic" = AtomicOps {
            size, writemsg, readwrite, compwrite, writevalid, readwritevalid, compwritevalid,
        }
    }
}

/// Returns the constants of the interface that the fabric uses, by their names in C.
#[must_use]
pub fn constants() -> Vec<(&'static str, u64)> {
    macro_rules! named {
        ($($name:ident),* $(,)?) => {
            vec![$((stringify!($name), $name as u64)),*]
        };
    }
    let mut all = named![
        FI_MSG,
        FI_RMA,
        FI_ATOMIC,
        FI_READ,
        FI_WRITE,
        FI_RECV,
        FI_SEND,
        FI_TRANSMIT,
        FI_REMOTE_READ,
        FI_REMOTE_WRITE,
        FI_DELIVERY_COMPLETE,
        FI_SOURCE,
        FI_CONTEXT,
        FI_CONTEXT2,
        FI_ORDER_WAW,
        FI_ORDER_ATOMIC_WAW,
        FI_MR_VIRT_ADDR,
        FI_MR_ALLOCATED,
        FI_MR_PROV_KEY,
        FI_EP_RDM,
        FI_AV_TABLE,
        FI_PROGRESS_MANUAL,
        FI_THREAD_DOMAIN,
        FI_CQ_FORMAT_CONTEXT,
        FI_WAIT_FD,
        FI_GETWAIT,
        FI_ENABLE,
        FI_UINT8,
        FI_UINT64,
        FI_SUM,
        FI_ATOMIC_READ,
        FI_ATOMIC_WRITE,
        FI_CSWAP,
        FI_EAGAIN,
        FI_ENOSYS,
        FI_EAVAIL,
    ];
    all.push((
        "sizeof(struct fi_msg_atomic)",
        size_of::<MsgAtomic>() as u64,
    ));
    all.push(("sizeof(struct fi_cq_attr)", size_of::<CqAttr>() as u64));
    all.push(("sizeof(struct fi_av_attr)", size_of::<AvAttr>() as u64));
    all.push(("sizeof(struct fi_cq_entry)", size_of::<CqEntry>() as u64));
    all.push((
        "sizeof(struct fi_cq_err_entry)",
        size_of::<CqErrEntry>() as u64,
    ));
    all.push(("sizeof(struct fi_context2)", size_of::<Context>() as u64));
    all
}
