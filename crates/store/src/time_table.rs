//! [`TimeRow`]s as columns and back.

use std::sync::Arc;

use arrow_array::builder::{UInt32Builder, UInt64Builder};
use arrow_array::{Array, ArrayRef, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field};
use vmtax_events::{NO_VCPU, TimeRow};

use crate::Error;
use crate::column::Columns;

/// Names and types, in the order of [`TimeBuilder::take`].
pub(crate) fn fields() -> Vec<Field> {
    let number = |name| Field::new(name, DataType::UInt64, false);
    vec![
        number("interval_start_ns"),
        Field::new("vm", DataType::UInt32, false),
        Field::new("vcpu", DataType::UInt32, true),
        number("wall_ns"),
        number("guest_ns"),
        number("l2_ns"),
        number("exit_kernel_ns"),
        number("exit_user_ns"),
        number("halted_ns"),
        number("preempted_ns"),
        number("unknown_ns"),
    ]
}

/// Collects time rows as columns.
#[derive(Default)]
pub(crate) struct TimeBuilder {
    interval_start_ns: UInt64Builder,
    vm: UInt32Builder,
    vcpu: UInt32Builder,
    wall_ns: UInt64Builder,
    guest_ns: UInt64Builder,
    l2_ns: UInt64Builder,
    exit_kernel_ns: UInt64Builder,
    exit_user_ns: UInt64Builder,
    halted_ns: UInt64Builder,
    preempted_ns: UInt64Builder,
    unknown_ns: UInt64Builder,
}

impl TimeBuilder {
    pub(crate) fn push(&mut self, row: &TimeRow) {
        let TimeRow {
            interval_start_ns,
            vm,
            vcpu,
            wall_ns,
            guest_ns,
            l2_ns,
            exit_kernel_ns,
            exit_user_ns,
            halted_ns,
            preempted_ns,
            unknown_ns,
        } = *row;
        self.interval_start_ns.append_value(interval_start_ns);
        self.vm.append_value(vm);
        self.vcpu.append_option((vcpu != NO_VCPU).then_some(vcpu));
        self.wall_ns.append_value(wall_ns);
        self.guest_ns.append_value(guest_ns);
        self.l2_ns.append_value(l2_ns);
        self.exit_kernel_ns.append_value(exit_kernel_ns);
        self.exit_user_ns.append_value(exit_user_ns);
        self.halted_ns.append_value(halted_ns);
        self.preempted_ns.append_value(preempted_ns);
        self.unknown_ns.append_value(unknown_ns);
    }

    /// The columns so far; the builder is empty again.
    pub(crate) fn take(&mut self) -> Vec<ArrayRef> {
        vec![
            Arc::new(self.interval_start_ns.finish()),
            Arc::new(self.vm.finish()),
            Arc::new(self.vcpu.finish()),
            Arc::new(self.wall_ns.finish()),
            Arc::new(self.guest_ns.finish()),
            Arc::new(self.l2_ns.finish()),
            Arc::new(self.exit_kernel_ns.finish()),
            Arc::new(self.exit_user_ns.finish()),
            Arc::new(self.halted_ns.finish()),
            Arc::new(self.preempted_ns.finish()),
            Arc::new(self.unknown_ns.finish()),
        ]
    }
}

/// Passes the rows of a batch on.
pub(crate) fn read(columns: Columns<'_>, each: &mut dyn FnMut(&TimeRow)) -> Result<(), Error> {
    let number = |column| columns.required::<UInt64Array>(column);
    let interval_start_ns = number("interval_start_ns")?;
    let vm: &UInt32Array = columns.required("vm")?;
    let vcpu: &UInt32Array = columns.nullable("vcpu")?;
    let wall_ns = number("wall_ns")?;
    let guest_ns = number("guest_ns")?;
    // Runs made before the column was added have none.
    let l2_ns: Option<&UInt64Array> = columns.optional("l2_ns")?;
    let exit_kernel_ns = number("exit_kernel_ns")?;
    let exit_user_ns = number("exit_user_ns")?;
    let halted_ns = number("halted_ns")?;
    let preempted_ns = number("preempted_ns")?;
    let unknown_ns = number("unknown_ns")?;
    for i in 0..columns.batch.num_rows() {
        each(&TimeRow {
            interval_start_ns: interval_start_ns.value(i),
            vm: vm.value(i),
            vcpu: if vcpu.is_null(i) { NO_VCPU } else { vcpu.value(i) },
            wall_ns: wall_ns.value(i),
            guest_ns: guest_ns.value(i),
            l2_ns: l2_ns.map_or(0, |column| column.value(i)),
            exit_kernel_ns: exit_kernel_ns.value(i),
            exit_user_ns: exit_user_ns.value(i),
            halted_ns: halted_ns.value(i),
            preempted_ns: preempted_ns.value(i),
            unknown_ns: unknown_ns.value(i),
        });
    }
    Ok(())
}
