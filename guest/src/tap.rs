//! A tap: a network interface whose other end is a program; and a bridge of taps.

use std::fs::File;
use std::io::Error;
use std::os::fd::AsRawFd;

use crate::Result;
use crate::system::Interface;

/// Makes a tap that is there while it is open. Packets have the header of virtio.
pub(crate) fn open(name: &str) -> Result<(File, Interface)> {
    let path = "/dev/net/tun";
    let file = File::options().read(true).write(true).open(path);
    let file = file.map_err(|e| format!("{path}: {e}"))?;
    let interface = Interface::new(name)?;
    let mut request = interface.request();
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as i16;
    // SAFETY: the call reads an interface request, which lives over it.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) } < 0 {
        return Err(failed(name));
    }
    Ok((file, interface))
}

/// Makes a tap that stays when nobody has it open.
pub(crate) fn make(name: &str) -> Result<Interface> {
    let (file, interface) = open(name)?;
    // SAFETY: the call reads a number.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETPERSIST as _, 1) } < 0 {
        return Err(failed(name));
    }
    Ok(interface)
}

fn failed(name: &str) -> String {
    format!("the tap {name}: {}", Error::last_os_error())
}

/// Makes a bridge of new taps. Its ports forward at once: it has no spanning tree.
pub(crate) fn bridge(name: &str, taps: &[&str]) -> Result<Interface> {
    let bridge = Interface::new(name)?;
    bridge.make_bridge()?;
    for tap in taps {
        let tap = make(tap)?;
        bridge.add_port(&tap)?;
        tap.up()?;
    }
    Ok(bridge)
}
