//! Virtio devices of a Linux guest on arm64 (Virtual I/O Device 1.2, 2.7 and 4.2): a disk in memory and a network card on a tap.
//!
//! Each is there twice: without and with a bounce buffer, which the guest's kernel has where its device tree says. The host of a protected VM can access no
//! other memory of it, so there only those with it are. A queue is served by the vCPU's thread, in its exit; what a card receives, by a thread of its own.

use std::fs::File;
use std::io::{Error, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};

use kvm_ioctls::VmFd;
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK,
    VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN,
    VIRTIO_BLK_T_OUT,
};
use virtio_bindings::virtio_config::{VIRTIO_F_ACCESS_PLATFORM, VIRTIO_F_VERSION_1};
use virtio_bindings::virtio_ids::{VIRTIO_ID_BLOCK, VIRTIO_ID_NET};
use virtio_bindings::virtio_mmio as register;
use virtio_bindings::virtio_net::VIRTIO_NET_F_MAC;
use virtio_queue::{Queue, QueueT};
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vmtax_guest::layout::arm;

use super::io::{self, DeviceKind};
use super::vmm::{ArmVmMemory, failed};
use crate::l1::lock;
use crate::{Result, tap};

/// A word of the command line of a guest with these devices, and of its host.
pub(crate) const WORD: &str = "vmtax.devices";
/// "virt", little-endian.
const MAGIC: u32 = 0x7472_6976;
const VERSION: u32 = 2;
const QUEUE_SIZE: u16 = 256;
/// Where the registers end and the device's configuration begins.
const CONFIGURATION: u64 = register::VIRTIO_MMIO_CONFIG as u64;
/// Parts of a request to the disk: a queue has two more, for what is wanted and for the outcome.
const PARTS: u32 = QUEUE_SIZE as u32 - 2;
/// Bytes of the disk, and of its sectors.
const DISK: usize = 8 << 20;
const SECTOR: usize = 512;
/// What precedes each packet on the tap and in a queue: `struct virtio_net_hdr_v1`.
static PACKET_HEADER: libc::c_int = 12;
/// The longest packet with it.
const PACKET: usize = 2048;
const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
/// A shared interrupt of the GIC (`KVM_ARM_IRQ_TYPE_SPI`), and the first one's number.
const SHARED: u32 = 1 << 24;
const FIRST_SHARED: u32 = 32;

/// All devices of a guest.
pub(crate) struct VirtioBus {
    memory: GuestMemoryMmap,
    vm: Arc<VmFd>,
    /// By their place.
    devices: Vec<(DeviceKind, Mutex<VirtioDevice>)>,
}

/// Those that a guest has, in the order of their places.
pub(crate) fn kinds(is_protected: bool) -> impl Iterator<Item = DeviceKind> {
    DeviceKind::ALL.into_iter().filter(move |kind| kind.bounced || !is_protected)
}

/// The address of a device's registers.
pub(crate) fn address(kind: DeviceKind) -> u64 {
    arm::DEVICES + u64::from(kind.number()) * arm::DEVICE_BYTES
}

impl VirtioBus {
    /// Makes them, and starts threads that receive.
    pub(crate) fn start(
        memory: &ArmVmMemory,
        vm: &Arc<VmFd>,
        is_protected: bool,
    ) -> Result<Arc<VirtioBus>> {
        let mut receivers = Vec::new();
        let mut devices = Vec::new();
        for kind in kinds(is_protected) {
            let function = match kind.is_card {
                false => DeviceFunction::Disk(vec![0; DISK]),
                true => {
                    let tap = open_tap(kind)?;
                    receivers.push((devices.len(), tap.try_clone().map_err(failed_tap)?));
                    DeviceFunction::Card(tap)
                }
            };
            devices.push((kind, Mutex::new(VirtioDevice::new(kind, function)?)));
        }
        let (memory, vm) = (memory.guest(arm::MEMORY)?, Arc::clone(vm));
        let bus = Arc::new(VirtioBus { memory, vm, devices });
        for (index, tap) in receivers {
            let bus = Arc::clone(&bus);
            let body = move || bus.receive(index, tap);
            std::thread::Builder::new().spawn(body).map_err(|e| format!("thread: {e}"))?;
        }
        io::serve()?;
        Ok(bus)
    }

    /// The device at an address, and the place in its registers.
    fn at(&self, address: u64) -> Option<(&DeviceKind, &Mutex<VirtioDevice>, u64)> {
        let offset = address.checked_sub(arm::DEVICES)?;
        let number = offset / arm::DEVICE_BYTES;
        let is_this = |(kind, _): &&(DeviceKind, _)| u64::from(kind.number()) == number;
        let (kind, device) = self.devices.iter().find(is_this)?;
        Some((kind, device, offset % arm::DEVICE_BYTES))
    }

    /// A load by the guest; false if no device is there.
    pub(crate) fn load(&self, address: u64, data: &mut [u8]) -> bool {
        let Some((kind, device, offset)) = self.at(address) else { return false };
        let device = lock(device);
        match offset.checked_sub(CONFIGURATION) {
            Some(at) => device.configuration(*kind, at, data),
            None => {
                let value = device.register(offset as u32).to_le_bytes();
                data.iter_mut().zip(value).for_each(|(to, from)| *to = from);
            }
        }
        true
    }

    /// A store by the guest; false if no device is there.
    pub(crate) fn store(&self, address: u64, data: &[u8]) -> Result<bool> {
        let Some((kind, device, offset)) = self.at(address) else { return Ok(false) };
        let Ok(value) = data.try_into().map(u32::from_le_bytes) else { return Ok(true) };
        let mut device = lock(device);
        match device.set(offset as u32, value) {
            Answer::Nothing => {}
            Answer::Ready => device.check(&self.memory)?,
            Answer::Notified(queue) => {
                if device.serve(queue, *kind, &self.memory)? {
                    self.interrupt(*kind, &mut device)?;
                }
            }
            Answer::Acknowledged => self.line(*kind, false)?,
        }
        Ok(true)
    }

    /// Tells the guest that it has used buffers.
    fn interrupt(&self, kind: DeviceKind, device: &mut VirtioDevice) -> Result<()> {
        device.pending |= register::VIRTIO_MMIO_INT_VRING;
        self.line(kind, true)
    }

    fn line(&self, kind: DeviceKind, is_up: bool) -> Result<()> {
        let number = SHARED | (FIRST_SHARED + u32::from(kind.number()));
        self.vm.set_irq_line(number, is_up).map_err(failed("KVM_IRQ_LINE"))
    }

    /// What comes on a tap goes to the guest, until the machine ends. A packet for which the guest has no buffer is lost.
    fn receive(&self, index: usize, mut tap: File) {
        let mut packet = [0; PACKET];
        let Some((kind, device)) = self.devices.get(index) else { return };
        while let Ok(length) = tap.read(&mut packet) {
            let mut device = lock(device);
            let put = device.put(&packet[..length], &self.memory);
            if put.is_ok_and(|was_put| was_put) && self.interrupt(*kind, &mut device).is_err() {
                return;
            }
        }
    }
}

fn failed_tap(error: Error) -> String {
    format!("the tap: {error}")
}

/// The host's end of a card, with an address.
fn open_tap(kind: DeviceKind) -> Result<File> {
    let (tap, interface) = tap::open(kind.tap())?;
    // SAFETY: the call reads a number, which lives over it.
    let set = unsafe {
        libc::ioctl(tap.as_raw_fd(), libc::TUNSETVNETHDRSZ as _, &raw const PACKET_HEADER)
    };
    if set != 0 {
        return Err(failed_tap(Error::last_os_error()));
    }
    interface.address(kind.host_address(), 24)?;
    interface.up()?;
    Ok(tap)
}

/// What a device does.
enum DeviceFunction {
    Disk(Vec<u8>),
    Card(File),
}

/// What a store to a register asks for.
enum Answer {
    Nothing,
    /// A queue is ready.
    Ready,
    /// The guest has put buffers into this queue.
    Notified(usize),
    /// No interrupt is pending any more.
    Acknowledged,
}

struct VirtioDevice {
    function: DeviceFunction,
    features: u64,
    features_half: u32,
    status: u32,
    /// Reasons of its interrupt.
    pending: u32,
    queues: Vec<Queue>,
    selected: usize,
}

fn failed_queue(error: virtio_queue::Error) -> String {
    format!("a queue of a virtio device: {error}")
}

impl VirtioDevice {
    fn new(kind: DeviceKind, function: DeviceFunction) -> Result<VirtioDevice> {
        let bit = |is_there: bool, number: u32| u64::from(is_there) << number;
        let queues = if kind.is_card { 2 } else { 1 };
        let queues = (0..queues).map(|_| Queue::new(QUEUE_SIZE).map_err(failed_queue));
        Ok(VirtioDevice {
            function,
            features: bit(true, VIRTIO_F_VERSION_1)
                | bit(kind.bounced, VIRTIO_F_ACCESS_PLATFORM)
                | bit(kind.is_card, VIRTIO_NET_F_MAC)
                | bit(!kind.is_card, VIRTIO_BLK_F_SEG_MAX),
            features_half: 0,
            status: 0,
            pending: 0,
            queues: queues.collect::<Result<_>>()?,
            selected: 0,
        })
    }

    /// The value of a register.
    fn register(&self, offset: u32) -> u32 {
        match offset {
            register::VIRTIO_MMIO_MAGIC_VALUE => MAGIC,
            register::VIRTIO_MMIO_VERSION => VERSION,
            register::VIRTIO_MMIO_DEVICE_ID => match self.function {
                DeviceFunction::Disk(_) => VIRTIO_ID_BLOCK,
                DeviceFunction::Card(_) => VIRTIO_ID_NET,
            },
            register::VIRTIO_MMIO_DEVICE_FEATURES => match self.features_half {
                0 => self.features as u32,
                1 => (self.features >> 32) as u32,
                _ => 0,
            },
            register::VIRTIO_MMIO_QUEUE_NUM_MAX => {
                self.queues.get(self.selected).map_or(0, |queue| queue.max_size().into())
            }
            register::VIRTIO_MMIO_QUEUE_READY => {
                self.queues.get(self.selected).is_some_and(QueueT::ready).into()
            }
            register::VIRTIO_MMIO_INTERRUPT_STATUS => self.pending,
            register::VIRTIO_MMIO_STATUS => self.status,
            // There is no shared memory.
            register::VIRTIO_MMIO_SHM_LEN_LOW | register::VIRTIO_MMIO_SHM_LEN_HIGH => u32::MAX,
            _ => 0,
        }
    }

    /// Bytes of the configuration.
    fn configuration(&self, kind: DeviceKind, at: u64, data: &mut [u8]) {
        let bytes = match &self.function {
            DeviceFunction::Disk(disk) => {
                let sectors = ((disk.len() / SECTOR) as u64).to_le_bytes();
                // The size of parts is not limited, their number is.
                [&sectors[..], &[0; 4], &PARTS.to_le_bytes()].concat()
            }
            DeviceFunction::Card(_) => kind.hardware_address().to_vec(),
        };
        for (to, place) in data.iter_mut().zip(at as usize..) {
            *to = bytes.get(place).copied().unwrap_or(0);
        }
    }

    /// Sets a register.
    fn set(&mut self, offset: u32, value: u32) -> Answer {
        let queue = self.queues.get_mut(self.selected);
        match (offset, queue) {
            (register::VIRTIO_MMIO_DEVICE_FEATURES_SEL, _) => self.features_half = value,
            (register::VIRTIO_MMIO_QUEUE_SEL, _) => self.selected = value as usize,
            (register::VIRTIO_MMIO_QUEUE_NOTIFY, _) => return Answer::Notified(value as usize),
            (register::VIRTIO_MMIO_INTERRUPT_ACK, _) => {
                self.pending &= !value;
                if self.pending == 0 {
                    return Answer::Acknowledged;
                }
            }
            (register::VIRTIO_MMIO_STATUS, _) => {
                self.status = value;
                if value == 0 {
                    self.queues.iter_mut().for_each(QueueT::reset);
                    self.pending = 0;
                    return Answer::Acknowledged;
                }
            }
            (register::VIRTIO_MMIO_QUEUE_NUM, Some(queue)) => queue.set_size(value as u16),
            (register::VIRTIO_MMIO_QUEUE_READY, Some(queue)) => {
                queue.set_ready(value == 1);
                if value == 1 {
                    return Answer::Ready;
                }
            }
            (register::VIRTIO_MMIO_QUEUE_DESC_LOW, Some(queue)) => {
                queue.set_desc_table_address(Some(value), None);
            }
            (register::VIRTIO_MMIO_QUEUE_DESC_HIGH, Some(queue)) => {
                queue.set_desc_table_address(None, Some(value));
            }
            (register::VIRTIO_MMIO_QUEUE_AVAIL_LOW, Some(queue)) => {
                queue.set_avail_ring_address(Some(value), None);
            }
            (register::VIRTIO_MMIO_QUEUE_AVAIL_HIGH, Some(queue)) => {
                queue.set_avail_ring_address(None, Some(value));
            }
            (register::VIRTIO_MMIO_QUEUE_USED_LOW, Some(queue)) => {
                queue.set_used_ring_address(Some(value), None);
            }
            (register::VIRTIO_MMIO_QUEUE_USED_HIGH, Some(queue)) => {
                queue.set_used_ring_address(None, Some(value));
            }
            _ => {}
        }
        Answer::Nothing
    }

    /// Whether this program can access the queue that has become ready: an access to memory that a guest keeps to itself would end it.
    fn check(&self, memory: &GuestMemoryMmap) -> Result<()> {
        let Some(queue) = self.queues.get(self.selected) else { return Ok(()) };
        let at = memory
            .get_host_address(GuestAddress(queue.desc_table()))
            .map_err(|e| format!("a queue of a virtio device: {e}"))?;
        let mut byte = 0u8;
        let here = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let there = libc::iovec { iov_base: at.cast(), iov_len: 1 };
        // SAFETY: the kernel copies a byte of this process into another one, or says that it cannot.
        let read = unsafe {
            libc::process_vm_readv(libc::getpid(), &raw const here, 1, &raw const there, 1, 0)
        };
        if read == 1 {
            return Ok(());
        }
        Err("the guest does not share its bounce buffer with this host".to_owned())
    }

    /// Serves a queue. Returns whether buffers were used.
    fn serve(&mut self, queue: usize, kind: DeviceKind, memory: &GuestMemoryMmap) -> Result<bool> {
        let mut used = false;
        let Some(queue) = self.queues.get_mut(queue).filter(|_| !kind.is_card || queue == TRANSMIT)
        else {
            return Ok(false);
        };
        while let Some(chain) = queue.pop_descriptor_chain(memory) {
            let (head, from) = (chain.head_index(), chain.clone());
            let mut reader = from.reader::<()>(memory).map_err(failed_queue)?;
            let written = match &mut self.function {
                DeviceFunction::Card(tap) => {
                    let mut packet = Vec::new();
                    reader.read_to_end(&mut packet).map_err(failed_tap)?;
                    // One that the tap does not take is lost, as on a wire.
                    let _ = tap.write(&packet);
                    0
                }
                DeviceFunction::Disk(disk) => {
                    let mut writer = chain.writer::<()>(memory).map_err(failed_queue)?;
                    request(disk, kind, &mut reader, &mut writer)
                        .map_err(|e| format!("a request of the disk: {e}"))?;
                    writer.bytes_written() as u32
                }
            };
            queue.add_used(memory, head, written).map_err(failed_queue)?;
            used = true;
        }
        Ok(used)
    }

    /// Gives the guest a packet; false if it has no buffer.
    fn put(&mut self, packet: &[u8], memory: &GuestMemoryMmap) -> Result<bool> {
        let Some(queue) = self.queues.get_mut(RECEIVE).filter(|queue| queue.ready()) else {
            return Ok(false);
        };
        let Some(chain) = queue.pop_descriptor_chain(memory) else { return Ok(false) };
        let head = chain.head_index();
        let mut writer = chain.writer::<()>(memory).map_err(failed_queue)?;
        writer.write_all(packet).map_err(failed_tap)?;
        let written = writer.bytes_written() as u32;
        queue.add_used(memory, head, written).map_err(failed_queue)?;
        Ok(true)
    }
}

/// Carries out a request of the disk: its header, its data, and a byte for the outcome.
fn request(
    disk: &mut [u8],
    kind: DeviceKind,
    reader: &mut virtio_queue::Reader<'_>,
    writer: &mut virtio_queue::Writer<'_>,
) -> std::io::Result<()> {
    let (what, _, sector): (u32, u32, u64) =
        (reader.read_obj()?, reader.read_obj()?, reader.read_obj()?);
    let room = writer.available_bytes().saturating_sub(1);
    let start = usize::try_from(sector).unwrap_or(usize::MAX).saturating_mul(SECTOR);
    let outcome = match what {
        VIRTIO_BLK_T_IN => match disk.get(start..start.saturating_add(room)) {
            Some(data) => writer.write_all(data).map(|()| VIRTIO_BLK_S_OK)?,
            None => VIRTIO_BLK_S_IOERR,
        },
        VIRTIO_BLK_T_OUT => {
            let length = reader.available_bytes();
            match disk.get_mut(start..start.saturating_add(length)) {
                Some(data) => reader.read_exact(data).map(|()| VIRTIO_BLK_S_OK)?,
                None => VIRTIO_BLK_S_IOERR,
            }
        }
        VIRTIO_BLK_T_GET_ID => {
            let mut name = [0; VIRTIO_BLK_ID_BYTES as usize];
            name.iter_mut().zip(kind.name().bytes()).for_each(|(to, from)| *to = from);
            writer.write_all(&name[..room.min(name.len())])?;
            VIRTIO_BLK_S_OK
        }
        VIRTIO_BLK_T_FLUSH => VIRTIO_BLK_S_OK,
        _ => VIRTIO_BLK_S_UNSUPP,
    };
    let left = writer.available_bytes().saturating_sub(1);
    writer.write_all(&vec![0; left])?;
    writer.write_all(&[outcome as u8])
}
