#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# enter_host.sh HOST COMMAND...: what mpirun takes for ssh (plm_rsh_agent): the command on another host of the sandbox.
hosts=/run/usp-hosts
host=$1
shift
exec nsenter --net="$hosts/$host/net" --uts="$hosts/$host/uts" -- sh -c "$*"
