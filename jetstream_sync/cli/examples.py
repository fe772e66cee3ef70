"""Examples of the commands, one a line, which the help of each command shows at its end."""

from __future__ import annotations

import re
from typing import Final

_EXAMPLES: Final = r"""
jsm account info
jsm account report connections --sort in-bytes
jsm account report statistics
jsm account backup /backups/today
jsm account restore /backups/today
jsm stream add ORDERS --subjects 'ORDERS.*' --max-age 1y --replicas 3
jsm stream add ORDERS --config orders.json
jsm stream ls --long --sort bytes
jsm stream ls --empty --idle 7d -n
jsm stream info ORDERS
jsm stream info ORDERS --state -j
jsm stream edit ORDERS --max-age 30d --dry-run
jsm stream edit ORDERS --max-msgs 1,000,000 --dry-run --exit-code
jsm stream rm ORDERS
jsm stream purge ORDERS --subject ORDERS.test --keep 10
jsm stream view ORDERS --subject ORDERS.received
jsm stream get ORDERS 12
jsm stream get ORDERS --last-for ORDERS.received
jsm stream rmm ORDERS 12 13
jsm stream subjects ORDERS
jsm stream gaps ORDERS
jsm stream schedules ORDERS
jsm stream seal ARCHIVE
jsm stream copy ORDERS ORDERS_TEST --subjects 'TEST.*'
jsm stream backup ORDERS /backups/ORDERS
jsm stream restore /backups/ORDERS
jsm stream cluster step-down ORDERS
jsm stream cluster peer-remove ORDERS n2
jsm stream cluster balance --dry-run
jsm consumer add ORDERS NEW --filter ORDERS.received --ack explicit --pull --deliver all
jsm consumer add ORDERS MONITOR --ack none --target monitor.ORDERS --deliver last --filter ''
jsm consumer add ORDERS --pull --ephemeral --deliver 1h --defaults
jsm consumer ls ORDERS --long
jsm consumer ls -a --stuck
jsm consumer info ORDERS NEW
jsm consumer next ORDERS NEW --count 10
jsm consumer sub ORDERS NEW --no-ack
jsm consumer sample ORDERS NEW --count 5
jsm consumer edit ORDERS NEW --max-pending 500
jsm consumer copy ORDERS NEW NEW_2 --deliver new
jsm consumer rm ORDERS NEW
jsm consumer pause ORDERS NEW 1h
jsm consumer pause ORDERS NEW 2026-12-24T18:00:00+01:00
jsm consumer resume ORDERS NEW
jsm consumer unpin ORDERS NEW jobs
jsm consumer reset ORDERS NEW --seq 1000
jsm consumer dlq setup --max-age 90d
jsm consumer dlq ls ORDERS
jsm consumer dlq show ORDERS NEW 12
jsm consumer dlq requeue ORDERS NEW --all
jsm consumer cluster step-down ORDERS NEW
jsm consumer cluster balance ORDERS --dry-run
jsm kv add CONFIG --history 5
jsm kv add SESSIONS --ttl 1h --storage memory
jsm kv add CONFIG_COPY --mirror CONFIG
jsm kv edit CONFIG --history 10
jsm kv ls
jsm kv ls CONFIG 'db.*' --verbose
jsm kv info CONFIG
jsm kv get CONFIG db.url
jsm kv get CONFIG 'unit.*.temperature'
jsm kv put CONFIG db.url postgres://db.example.com
jsm kv put CONFIG logo < logo.png
jsm kv create CONFIG lock.import host-1 --ttl 1m
jsm kv update CONFIG db.url postgres://db2.example.com 12
jsm kv revert CONFIG db.url 12
jsm kv del CONFIG db.url
jsm kv purge CONFIG db.url
jsm kv compact CONFIG
jsm kv history CONFIG db.url
jsm kv watch CONFIG 'db.>' --updates
jsm object add FILES --max-bucket-size 10GB
jsm object add BUILDS --ttl 30d --compress
jsm object edit FILES --max-bucket-size 20GB
jsm object put FILES report.pdf
jsm object get FILES report.pdf
jsm object get FILES src.tar.gz -O - | tar xz
jsm object ls FILES
jsm object info FILES report.pdf
jsm object del FILES report.pdf
jsm object compact FILES --older-than 1h
jsm object seal RELEASES
jsm object watch FILES
jsm service ls
jsm service info orders
jsm service stats orders
jsm service ping
jsm counter ls VISITS
jsm counter get VISITS visits.home
jsm counter add VISITS visits.home 5
jsm counter reset VISITS visits.home
jsm pub ORDERS.received "order 1"
jsm pub ORDERS.received "order {{Count}}" --templates --count 100 -J
tail -f orders.log | jsm pub ORDERS.received --send-on newline
jsm pub ORDERS.schedules.report run --schedule-dest ORDERS.report --schedule-cron '@daily'
jsm req ORDERS.scratch hello
jsm req '$JS.API.STREAM.INFO.ORDERS' '' --raw
jsm req discover '' --replies 0 --timeout 1s
jsm reply ORDERS.scratch ok
jsm reply 'test.>' --echo
jsm sub 'ORDERS.*' -t
jsm sub --stream ORDERS --all -T -j
jsm sub 'ORDERS.>' --last-per-subject --count 5
jsm trace ORDERS.received
jsm apply -f shop.json --dry-run
jsm apply -f shop.json --prune
jsm context add production --server nats://n1.example.com --creds production.creds --select
jsm context ls
jsm context info production
jsm context select production
jsm context unselect
jsm context previous
jsm context edit production
jsm context rm production
jsm events --js-advisory
jsm events --filter max_deliver -j
jsm top
jsm top --once -j
jsm worker run shop.workers:worker --processes 4 --http 127.0.0.1:8080
jsm worker check shop.workers:worker
jsm worker setup shop.workers:worker --check
jsm worker replay DEAD 12 shop.workers:worker --pdb
jsm worker schedules shop.workers:worker --prune
jsm worker ls
jsm worker running
jsm worker stacks shop
jsm bench pub --msgs 1M --size 128 --clients 2
jsm bench sub --msgs 1M
jsm bench js pub sync --msgs 10k --storage file --replicas 3
jsm bench js pub async --msgs 1M
jsm bench js fetch --batch 1000
jsm bench js ordered --clients 4
jsm rtt --count 10
jsm errors ls consumer
jsm errors lookup 10059
jsm server run --port 4222 --store-dir data
jsm server run --cluster 3
jsm server check connection
jsm server check stream --stream ORDERS --msgs-critical 0 --peer-expect 3
jsm server check consumer --stream ORDERS --consumer NEW --unprocessed-critical 10000
jsm server check message --stream ORDERS --subject ORDERS.received --age-critical 1h
jsm server check jetstream --format prometheus
jsm server check meta --expect 3
jsm server check kv --bucket CONFIG --key db.url
jsm server check credential --credential production.creds --validity-warn 30d
jsm server ls
jsm server info n1
jsm server ping 3
jsm server report jetstream --watch 5s
jsm server report connections --account APP --sort subs
jsm server report accounts
jsm server report health --account APP --stream ORDERS
jsm server report routes
jsm server report gateways
jsm server report leafnodes
jsm server request connz --filter account=APP --filter sort=subs
jsm server request jsz --filter streams=true --host cluster-1
jsm server cluster step-down
jsm server cluster peer-remove n3
jsm demo --workers 4 --redeliver 5
jsm completion bash > ~/.local/share/bash-completion/completions/jsm
jsm commands -j
jsm help stream add
"""


def examples_of(path: str) -> list[str]:
    """Return the examples of a command; `path`: its name with those of its groups, such as ``stream add``."""
    pattern = rf"^(?:.*\| )?jsm {re.escape(path)}(?: .*)?$"
    return re.findall(pattern, _EXAMPLES, re.MULTILINE)
