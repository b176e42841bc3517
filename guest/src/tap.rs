//! A tap: a network interface whose other end is a program.

use std::fs::File;
use std::io::Error;
use std::os::fd::AsRawFd;

use crate::Result;
use crate::system::Interface;

/// Makes a tap that stays when nobody has it open, with an address in a network of 256.
pub(crate) fn make(name: &str, own: [u8; 4]) -> Result<()> {
    let path = "/dev/net/tun";
    let file = File::options().read(true).write(true).open(path);
    let file = file.map_err(|e| format!("{path}: {e}"))?;
    let interface = Interface::new(name)?;
    let mut request = interface.request();
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as i16;
    // SAFETY: the first call reads an interface request, which lives over the call, the second a number.
    let made = unsafe {
        libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) >= 0
            && libc::ioctl(file.as_raw_fd(), libc::TUNSETPERSIST as _, 1) >= 0
    };
    if !made {
        return Err(format!("the tap {name}: {}", Error::last_os_error()));
    }
    interface.address(own, 24)?;
    interface.up()
}
