//! Every single exit as a Perfetto timeline.

use std::io::{self, Write};

use vmtax_analyse::Filter;
use vmtax_events::{Exit, RowSink, Vm};
use vmtax_report::perfetto::PerfettoWriter;

use crate::convert;
use crate::{Input, ReadOptions};

/// Writes the exits of a recording, or of a run that holds single events.
pub fn write(
    input: Input,
    reading: &ReadOptions,
    filter: Filter,
    source: &str,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let timeline = ToTimeline { writer: PerfettoWriter::new(out, source)?, filter, failed: None };
    let timeline = match input {
        Input::Recording(recording) => convert::run(recording, reading, timeline)?.rows,
        Input::Run(run) => convert::of_events(&run, reading, timeline)?.rows,
    };
    if let Some(error) = timeline.failed {
        return Err(error.into());
    }
    timeline.writer.finish()?;
    Ok(())
}

/// Exits on their way into a timeline.
struct ToTimeline<W: Write> {
    writer: PerfettoWriter<W>,
    filter: Filter,
    failed: Option<io::Error>,
}

impl<W: Write> RowSink for ToTimeline<W> {
    fn appeared(&mut self, vm: &Vm) {
        if let Err(error) = self.writer.vm(vm) {
            self.failed.get_or_insert(error);
        }
    }

    fn ended(&mut self, exit: &Exit) {
        if self.filter.wants(exit.key.vm, exit.key.vcpu) && self.failed.is_none() {
            self.failed = self.writer.exit(exit).err();
        }
    }

    fn has_failed(&self) -> bool {
        self.failed.is_some()
    }
}
