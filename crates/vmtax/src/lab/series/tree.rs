//! Kernels of a git tree: a commit is checked out beside the tree, and the user's command builds it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use vmtax_cli::exit::{Code, fail};
use vmtax_cli::output;
use vmtax_durable::NewFolder;
use vmtax_machine::kernel::{self, Kernel};
use vmtax_runs::lab::fault;

use super::super::args::SeriesArgs;
use super::plan::slug;

/// The folder of the series with what was built.
const BUILT: &str = "kernels";
/// What a build leaves in `$OUT`.
const IMAGE: &str = "vmlinuz";
const MODULES: &str = "modules";

/// The kernel of a commit, built if it was not yet.
pub(super) fn kernel(tree: &Path, commit: &str, args: &SeriesArgs) -> anyhow::Result<Kernel> {
    let folder = std::path::absolute(&args.output)?.join(BUILT).join(slug(commit));
    if !folder.exists() {
        build(tree, commit, args.build.as_deref().unwrap_or_default(), &folder)?;
    }
    let modules = folder.join(MODULES);
    let modules = modules.exists().then_some(modules);
    kernel::files(&folder.join(IMAGE), modules.as_deref()).map_err(|e| fault(e.into(), None))
}

fn build(tree: &Path, commit: &str, command: &str, folder: &Path) -> anyhow::Result<()> {
    let cannot = |path: &Path| {
        let path = path.display().to_string();
        move |e: std::io::Error| output::cannot_write(&path, &e)
    };
    let above = folder.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(above).map_err(cannot(above))?;
    let out = NewFolder::beside(folder).map_err(cannot(folder))?;
    let checkout = Checkout::new(tree, commit)?;
    let mut shell = Command::new("sh");
    shell
        .args(["-ec", command])
        .current_dir(checkout.folder.path().join("tree"))
        .env("OUT", out.path());
    let log = fs::File::create(out.path().join("build.log")).map_err(cannot(folder))?;
    let both = log.try_clone().map_err(cannot(folder))?;
    let status = shell.stdout(log).stderr(both).status()?;
    let text = fs::read(out.path().join("build.log")).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let last = vmtax_events::printable(last.trim());
    if !status.success() {
        return fail(Code::Data, format!("{commit}: the build failed ({status}): {last}"));
    }
    if !out.path().join(IMAGE).exists() {
        return fail(
            Code::Data,
            format!("{commit}: the build left no $OUT/{IMAGE} (and $OUT/{MODULES}): {last}"),
        );
    }
    out.publish().map_err(|e| cannot(folder)(e).into())
}

/// A commit of a tree in a folder of its own, as long as this lives.
struct Checkout {
    tree: PathBuf,
    folder: tempfile::TempDir,
}

impl Checkout {
    fn new(tree: &Path, commit: &str) -> anyhow::Result<Checkout> {
        let folder = tempfile::tempdir()?;
        let checkout = Checkout { tree: tree.to_owned(), folder };
        let at = checkout.folder.path().join("tree");
        // A commit that begins as an option is none.
        let done = git(tree)
            .args(["worktree", "add", "--quiet", "--detach"])
            .arg(at)
            .args(["--end-of-options", commit])
            .output();
        match done {
            Ok(done) if done.status.success() => Ok(checkout),
            Ok(done) => {
                let said = String::from_utf8_lossy(&done.stderr);
                let line = said.lines().last().unwrap_or("git failed");
                fail(
                    Code::Data,
                    format!("{}: {commit}: {}", tree.display(), vmtax_events::printable(line)),
                )
            }
            Err(error) => fail(Code::Input, format!("git cannot be started: {error}")),
        }
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        // If this fails, `git worktree prune` removes the entry.
        let at = self.folder.path().join("tree");
        let _ = git(&self.tree).args(["worktree", "remove", "--force"]).arg(at).output();
    }
}

fn git(tree: &Path) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(tree).env("LC_ALL", "C");
    command
}
