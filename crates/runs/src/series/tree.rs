//! Kernels of a git tree: a commit is checked out beside the tree, and the user's command builds it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use vmtax_cli::exit::{Code, fail};
use vmtax_cli::output;
use vmtax_durable::NewFolder;
use vmtax_machine::kernel::{self, Kernel};

use super::GitTree;
use super::plan::slug;
use crate::lab::fault;

/// The folder of the series with what was built.
const BUILT: &str = "kernels";
/// What a build leaves in `$OUT`.
const IMAGE: &str = "vmlinuz";
const MODULES: &str = "modules";
const LOG: &str = "build.log";
/// The commit that was built, beside them: a branch names another one after a while.
const COMMIT: &str = "commit";

/// The kernel of a commit, built if it was not yet.
pub(super) fn kernel(tree: &GitTree, commit: &str, series: &Path) -> anyhow::Result<Kernel> {
    let folder = std::path::absolute(series)?.join(BUILT).join(slug(commit));
    let id = resolved(&tree.folder, commit)?;
    if !folder.exists() {
        build(&tree.folder, &id, &tree.build, &folder)?;
    }
    let built = fs::read_to_string(folder.join(COMMIT)).unwrap_or_default();
    if built.trim() != id {
        return fail(
            Code::Data,
            format!(
                "is commit {} now, and in this series {} was built under this name; name the commit, or another folder",
                short(&id),
                short(&vmtax_events::printable(built.trim()))
            ),
        );
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
    let log = fs::File::create(out.path().join(LOG)).map_err(cannot(folder))?;
    let both = log.try_clone().map_err(cannot(folder))?;
    let status = shell.stdout(log).stderr(both).status()?;
    let image_is_there = out.path().join(IMAGE).exists();
    if !status.success() || !image_is_there {
        let what = match status.success() {
            false => format!("the build failed ({status})"),
            true => format!("the build left no $OUT/{IMAGE} (and $OUT/{MODULES})"),
        };
        // The folder that has it is not kept.
        let kept = folder.with_file_name(format!(
            "{}.log",
            folder.file_name().unwrap_or_default().to_string_lossy()
        ));
        let text = fs::read(out.path().join(LOG)).unwrap_or_default();
        fs::write(&kept, &text).map_err(cannot(&kept))?;
        let said = told(&String::from_utf8_lossy(&text));
        return fail(Code::Data, format!("{what}: {said}; its output is in {}", kept.display()));
    }
    fs::write(out.path().join(COMMIT), format!("{commit}\n")).map_err(cannot(folder))?;
    out.publish().map_err(|e| cannot(folder)(e).into())
}

/// The line of a build's output that says why it failed: the first of an error, else the last.
fn told(text: &str) -> String {
    // Compilers write "error", make writes "***".
    let marks = ["error", "Error", "***"];
    let error = text.lines().find(|line| marks.iter().any(|mark| line.contains(mark)));
    let last = || text.lines().rev().find(|line| !line.trim().is_empty());
    vmtax_events::printable(error.or_else(last).unwrap_or("it has no output").trim())
}

/// The id of the commit that a tag, branch or id names.
fn resolved(tree: &Path, name: &str) -> anyhow::Result<String> {
    let commit = format!("{name}^{{commit}}");
    // A name that begins as an option is none.
    let found =
        git(tree).args(["rev-parse", "--verify", "--quiet", "--end-of-options", &commit]).output();
    match found {
        Ok(found) if found.status.success() => {
            // Git repeats the option in its answer.
            let said = String::from_utf8_lossy(&found.stdout);
            Ok(said.lines().last().unwrap_or_default().trim().to_owned())
        }
        Ok(found) => {
            let said = String::from_utf8_lossy(&found.stderr);
            let line = said.lines().last().unwrap_or("the tree has no such commit");
            fail(Code::Data, format!("{}: {}", tree.display(), vmtax_events::printable(line)))
        }
        Err(error) => fail(Code::Input, format!("git cannot be started: {error}")),
    }
}

fn short(id: &str) -> &str {
    id.get(..12).unwrap_or(id)
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
        let done =
            git(tree).args(["worktree", "add", "--quiet", "--detach"]).arg(at).arg(commit).output();
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
