/*
 * The C client's side of the comparison.
 *
 * Usage: bench ROW URL STREAM SUBJECT CONSUMER COUNT SIZE BATCH WINDOW
 *
 * Writes one line of JSON (count, seconds, version, processor) to standard output. Exits 1, with the reason on
 * standard error, when a call fails or what was read is not the whole stream in its order.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <nats/nats.h>

#define NUMBER_DIGITS 12
#define WAIT_MS 10000

typedef struct
{
    const char *row;
    const char *url;
    const char *stream;
    const char *subject;
    const char *consumer;
    long        count;
    int         size;
    int         batch;
    int         window;
} job;

static int async_errors = 0;

static void
fail(const char *where, natsStatus s)
{
    fprintf(stderr, "%s: %s\n", where, natsStatus_GetText(s));
    nats_PrintLastErrorStack(stderr);
    exit(1);
}

static void
check(natsStatus s, const char *where)
{
    if (s != NATS_OK)
        fail(where, s);
}

static double
now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + (double) t.tv_nsec / 1e9;
}

static char *
payload_of(const job *j)
{
    char *payload = malloc((size_t) j->size);

    if (payload == NULL)
        fail("malloc", NATS_NO_MEMORY);
    memset(payload, 'x', (size_t) j->size);
    return payload;
}

/* Each payload starts with its number: ascending numbers mean nothing twice, nothing out of order. */
static void
check_next(natsMsg *msg, char *last, const job *j)
{
    if (natsMsg_GetDataLength(msg) != j->size
        || memcmp(natsMsg_GetData(msg), last, NUMBER_DIGITS) <= 0)
    {
        fprintf(stderr, "wrong payload after %s\n", last);
        exit(1);
    }
    memcpy(last, natsMsg_GetData(msg), NUMBER_DIGITS);
}

static void
check_read(const char *last, const job *j)
{
    char expected[NUMBER_DIGITS + 16];

    snprintf(expected, sizeof(expected), "%0*ld", NUMBER_DIGITS, j->count);
    if (memcmp(expected, last, NUMBER_DIGITS) != 0)
    {
        fprintf(stderr, "the last payload was %s, not %s\n", last, expected);
        exit(1);
    }
}

static void
on_async_error(jsCtx *js, jsPubAckErr *pae, void *closure)
{
    (void) js;
    (void) pae;
    (void) closure;
    async_errors++;
}

static double
publish(jsCtx *js, const job *j)
{
    char   *payload = payload_of(j);
    double start    = now();

    for (long i = 0; i < j->count; i++)
    {
        jsPubAck *ack = NULL;

        check(js_Publish(&ack, js, j->subject, payload, j->size, NULL, NULL), "js_Publish");
        jsPubAck_Destroy(ack);
    }
    double seconds = now() - start;
    free(payload);
    return seconds;
}

static double
publish_async(jsCtx *js, const job *j)
{
    char   *payload = payload_of(j);
    double start    = now();

    for (long i = 0; i < j->count; i++)
        check(js_PublishAsync(js, j->subject, payload, j->size, NULL), "js_PublishAsync");
    check(js_PublishAsyncComplete(js, NULL), "js_PublishAsyncComplete");
    double seconds = now() - start;
    if (async_errors != 0)
    {
        fprintf(stderr, "%d publishes were refused\n", async_errors);
        exit(1);
    }
    free(payload);
    return seconds;
}

static double
fetch(natsConnection *nc, jsCtx *js, const job *j)
{
    natsSubscription *sub                     = NULL;
    char             last[NUMBER_DIGITS + 1]  = {0};
    long             left                     = j->count;
    jsSubOptions     opts;

    check(jsSubOptions_Init(&opts), "jsSubOptions_Init");
    opts.Stream   = j->stream;
    opts.Consumer = j->consumer;
    check(js_PullSubscribe(&sub, js, j->subject, NULL, NULL, &opts, NULL), "js_PullSubscribe");

    double start = now();
    while (left > 0)
    {
        natsMsgList list;
        int         batch = left < j->batch ? (int) left : j->batch;

        check(natsSubscription_Fetch(&list, sub, batch, WAIT_MS, NULL), "natsSubscription_Fetch");
        for (int i = 0; i < list.Count; i++)
        {
            check_next(list.Msgs[i], last, j);
            check(natsMsg_Ack(list.Msgs[i], NULL), "natsMsg_Ack");
        }
        left -= list.Count;
        natsMsgList_Destroy(&list);
    }
    check(natsConnection_FlushTimeout(nc, WAIT_MS), "natsConnection_Flush");
    double seconds = now() - start;
    check_read(last, j);
    natsSubscription_Destroy(sub);
    return seconds;
}

static double
ordered(jsCtx *js, const job *j)
{
    natsSubscription *sub                    = NULL;
    char             last[NUMBER_DIGITS + 1] = {0};
    jsSubOptions     opts;

    check(jsSubOptions_Init(&opts), "jsSubOptions_Init");
    opts.Stream  = j->stream;
    opts.Ordered = true;

    double start = now();
    check(js_SubscribeSync(&sub, js, j->subject, NULL, &opts, NULL), "js_SubscribeSync");
    for (long i = 0; i < j->count; i++)
    {
        natsMsg *msg = NULL;

        check(natsSubscription_NextMsg(&msg, sub, WAIT_MS), "natsSubscription_NextMsg");
        check_next(msg, last, j);
        natsMsg_Destroy(msg);
    }
    double seconds = now() - start;
    check_read(last, j);
    natsSubscription_Destroy(sub);
    return seconds;
}

static double
ack_sync(jsCtx *js, const job *j)
{
    natsSubscription *sub                    = NULL;
    char             last[NUMBER_DIGITS + 1] = {0};
    natsMsg          **msgs                  = calloc((size_t) j->count, sizeof(natsMsg *));
    long             have                    = 0;
    jsSubOptions     opts;

    if (msgs == NULL)
        fail("calloc", NATS_NO_MEMORY);
    check(jsSubOptions_Init(&opts), "jsSubOptions_Init");
    opts.Stream   = j->stream;
    opts.Consumer = j->consumer;
    check(js_PullSubscribe(&sub, js, j->subject, NULL, NULL, &opts, NULL), "js_PullSubscribe");
    while (have < j->count)
    {
        natsMsgList list;
        int         batch = j->count - have < 500 ? (int) (j->count - have) : 500;

        check(natsSubscription_Fetch(&list, sub, batch, WAIT_MS, NULL), "natsSubscription_Fetch");
        for (int i = 0; i < list.Count; i++)
        {
            msgs[have++] = list.Msgs[i];
            list.Msgs[i] = NULL;
        }
        natsMsgList_Destroy(&list);
    }

    double start = now();
    for (long i = 0; i < j->count; i++)
    {
        check_next(msgs[i], last, j);
        check(natsMsg_AckSync(msgs[i], NULL, NULL), "natsMsg_AckSync");
        natsMsg_Destroy(msgs[i]);
    }
    double seconds = now() - start;
    check_read(last, j);
    free(msgs);
    natsSubscription_Destroy(sub);
    return seconds;
}

static double
request(natsConnection *nc, const job *j)
{
    char   subject[512];
    double start;

    snprintf(subject, sizeof(subject), "$JS.API.DIRECT.GET.%s.%s", j->stream, j->subject);
    start = now();
    for (long i = 0; i < j->count; i++)
    {
        natsMsg *reply = NULL;

        check(natsConnection_Request(&reply, nc, subject, NULL, 0, WAIT_MS),
              "natsConnection_Request");
        natsMsg_Destroy(reply);
    }
    return now() - start;
}

static double
core_read(natsConnection *nc, const job *j)
{
    natsSubscription *sub     = NULL;
    char             *payload = payload_of(j);

    check(natsConnection_SubscribeSync(&sub, nc, j->subject), "natsConnection_SubscribeSync");
    double start = now();
    for (long i = 0; i < j->count; i += 500)
    {
        for (int k = 0; k < 500; k++)
            check(natsConnection_Publish(nc, j->subject, payload, j->size),
                  "natsConnection_Publish");
        for (int k = 0; k < 500; k++)
        {
            natsMsg *msg = NULL;

            check(natsSubscription_NextMsg(&msg, sub, WAIT_MS), "natsSubscription_NextMsg");
            natsMsg_Destroy(msg);
        }
    }
    double seconds = now() - start;
    natsSubscription_Destroy(sub);
    free(payload);
    return seconds;
}

static double
core(natsConnection *nc, const job *j)
{
    char   *payload = payload_of(j);
    double start    = now();

    for (long i = 0; i < j->count; i++)
        check(natsConnection_Publish(nc, j->subject, payload, j->size), "natsConnection_Publish");
    check(natsConnection_FlushTimeout(nc, WAIT_MS), "natsConnection_Flush");
    double seconds = now() - start;
    free(payload);
    return seconds;
}

int
main(int argc, char **argv)
{
    natsConnection *nc = NULL;
    jsCtx          *js = NULL;
    jsOptions      opts;
    double         seconds;

    if (argc != 10)
    {
        fprintf(stderr, "usage: %s ROW URL STREAM SUBJECT CONSUMER COUNT SIZE BATCH WINDOW\n",
                argv[0]);
        return 2;
    }
    job j = {
        .row      = argv[1],
        .url      = argv[2],
        .stream   = argv[3],
        .subject  = argv[4],
        .consumer = argv[5],
        .count    = atol(argv[6]),
        .size     = atoi(argv[7]),
        .batch    = atoi(argv[8]),
        .window   = atoi(argv[9]),
    };

    check(natsConnection_ConnectTo(&nc, j.url), "natsConnection_ConnectTo");
    check(jsOptions_Init(&opts), "jsOptions_Init");
    opts.PublishAsync.MaxPending = j.window;
    opts.PublishAsync.StallWait  = WAIT_MS;
    opts.PublishAsync.ErrHandler = on_async_error;
    check(natsConnection_JetStream(&js, nc, &opts), "natsConnection_JetStream");

    if (strcmp(j.row, "publish") == 0)
        seconds = publish(js, &j);
    else if (strcmp(j.row, "publish_async") == 0)
        seconds = publish_async(js, &j);
    else if (strcmp(j.row, "ack_sync") == 0)
        seconds = ack_sync(js, &j);
    else if (strcmp(j.row, "request") == 0)
        seconds = request(nc, &j);
    else if (strcmp(j.row, "core_read") == 0)
        seconds = core_read(nc, &j);
    else if (strcmp(j.row, "messages") == 0 || strcmp(j.row, "worker") == 0 ||
             strcmp(j.row, "fetch500") == 0 || strcmp(j.row, "fetch1") == 0)
        seconds = fetch(nc, js, &j);
    else if (strcmp(j.row, "ordered") == 0)
        seconds = ordered(js, &j);
    else if (strcmp(j.row, "core") == 0)
        seconds = core(nc, &j);
    else
    {
        fprintf(stderr, "no such row: %s\n", j.row);
        return 2;
    }

    /* The processor time is that of the whole process, which does little else. */
    printf("{\"count\": %ld, \"seconds\": %.9f, \"version\": \"%s\","
           " \"processor\": %.6f}\n",
           j.count, seconds, nats_GetVersion(), (double) clock() / CLOCKS_PER_SEC);
    jsCtx_Destroy(js);
    natsConnection_Destroy(nc);
    nats_Close();
    return 0;
}
