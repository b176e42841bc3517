//! Files and folders that are published atomically, and the lock of a folder being written.
//!
//! ```text
//! NewFile     a file without a name -> fsync -> link or rename to its name -> fsync of the folder
//! NewFolder   .NAME.RANDOM.tmp/ -> filled -> renamed to NAME
//! Lock        flock on the folder itself: the kernel frees it when its holder ends, however it ends
//! ```
//!
//! A writer that is killed leaves no file where the file system has nameless files (`O_TMPFILE`: ext4, XFS, Btrfs, tmpfs).
//! Elsewhere (NFS, some FUSE file systems), and for folders, it leaves a temporary name; the next writer of the same target removes it.
//!
//! The only implementation in this workspace: run folders, reports, checkpoints, caches and compacted days all use it.
//! The content of the files is not interpreted.
//!
//! Small files that others wrote are read within a limit ([`read_small`]).

mod advice;
mod file;
mod folder;
mod lock;
mod small;
mod temporary;

pub use advice::advice;
pub use file::{FileAccess, NewFile, UnpublishedFile, write};
pub use folder::{NewFolder, create_private_folder, remove_folder, sync_folder};
pub use lock::{Lock, LockError, LockHolder};
pub use small::{read_small, read_small_text};
pub use temporary::remove_temporaries;
