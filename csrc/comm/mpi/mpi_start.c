/* Starting and ending MPI, and facts about it. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/mpi/mpi_private.h"
#include "comm/mpi/mpi_transport.h"
#include "comm/one_thread.h"

#ifdef OPEN_MPI
#include <mpi-ext.h>
#endif

/* How the library's version text begins if it is the one that mpi.h belongs to. */
#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#if defined(GG_MPI_BUILT_AGAINST)
#define BUILT_AGAINST GG_MPI_BUILT_AGAINST
#elif defined(OMPI_MAJOR_VERSION)
#define BUILT_AGAINST "Open MPI v" TEXT(OMPI_MAJOR_VERSION) "." TEXT(OMPI_MINOR_VERSION) "." TEXT(OMPI_RELEASE_VERSION)
#elif defined(I_MPI_VERSION)
#define BUILT_AGAINST "Intel(R) MPI Library"
#elif defined(MVAPICH2_VERSION)
#define BUILT_AGAINST "MVAPICH2 Version : " MVAPICH2_VERSION
#elif defined(MPICH_VERSION)
#define BUILT_AGAINST "MPICH Version: " MPICH_VERSION
#else
#define BUILT_AGAINST ""
#endif

/* Threads may make their first trainers at the same time. */
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static bool hooked;   /* the ends of MPI and of the process are noticed */
static bool ours;     /* MPI was started here, and is to be finalised here */
static pid_t process; /* the process that first called gg_mpi_start; MPI does not work in its forks */
static double init_seconds, stop_timeout;
static int exit_code; /* that the process will end with, where that is known before */

void gg_mpi_note_exit(int code) { exit_code = code; }

static bool is_here(void) { return process == getpid(); }

static gg_status check_process(void) {
    if (process == 0 || process == getpid()) return GG_OK;
    return gg_fail(GG_ERROR_STATE, "MPI belongs to process %ld; process %ld, forked from it, has no part in it",
                   (long)process, (long)getpid());
}

/* One line: every run of blanks and line ends becomes one blank. */
static void one_line(const char *text, char *out, size_t bytes) {
    size_t used = 0;
    for (; *text && used + 1 < bytes; ++text) {
        bool blank = isspace((unsigned char)*text);
        if (blank && (used == 0 || out[used - 1] == ' ')) continue;
        out[used++] = blank ? ' ' : *text;
    }
    while (used > 0 && out[used - 1] == ' ') used--;
    out[used] = '\0';
}

static gg_status library_version(char *out, size_t bytes) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING + 1] = "";
    int length = 0;
    gg_status status = gg_mpi_check(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
    if (status == GG_OK) one_line(text, out, bytes);
    return status;
}

static gg_status check_library(void) {
    char library[256], expected[256];
    GG_TRY(library_version(library, sizeof library));
    one_line(BUILT_AGAINST, expected, sizeof expected);
    size_t length = strlen(expected);
    /* "5.0.1" is not "5.0.11" */
    if (strncmp(library, expected, length) == 0 && !(length > 0 && isdigit((unsigned char)library[length])))
        return GG_OK;
    return gg_fail(GG_ERROR_UNSUPPORTED, "the MPI library found is '%.200s', but this package was built against '%s'",
                   library, expected);
}

static bool folder_has_entries(const char *path) {
    DIR *folder = opendir(path);
    if (!folder) return false;
    bool found = false;
    for (const struct dirent *entry; !found && (entry = readdir(folder));) found = entry->d_name[0] != '.';
    closedir(folder);
    return found;
}

/* Settings that save a second of start-up without a fast network. */
static void set_defaults(void) {
#ifdef OPEN_MPI
    const char *choice = getenv("GOSSIPGRAD_MPI_DEFAULTS");
    if (choice && strcmp(choice, "0") == 0) return;
    if (!folder_has_entries("/sys/class/infiniband") && !folder_has_entries("/sys/class/cxi")) {
        /* Ranks of one host listen on no network. */
        const char *here = getenv("OMPI_COMM_WORLD_LOCAL_SIZE"), *all = getenv("OMPI_COMM_WORLD_SIZE");
        const char *of_one_host = OMPI_MAJOR_VERSION < 5 ? "self,vader" : "self,sm";
        setenv("OMPI_MCA_btl", here != NULL && all != NULL && strcmp(here, all) == 0 ? of_one_host : "^ofi,uct", 0);
        setenv("OMPI_MCA_pml", "ob1", 0);
        /* Over TCP a receiver would request each large message, and its request would queue behind its own sends to
         * that peer: two ranks that exchange would use half of the link. Pieces that the sender pushes do not wait. */
        setenv("OMPI_MCA_btl_tcp_flags", "send", 0);
    }
#else
    (void)folder_has_entries;
#endif
}

bool gg_mpi_reads_devices(void) {
#if defined(OMPI_HAVE_MPI_EXT_CUDA) || defined(MPIX_CUDA_AWARE_SUPPORT)
    return MPIX_Query_cuda_support() == 1;
#else
    return false;
#endif
}

static gg_status mpi_alive(bool *initialised, bool *finalised) {
    int flag = 0;
    GG_TRY_MPI(MPI_Initialized, &flag);
    *initialised = flag != 0;
    GG_TRY_MPI(MPI_Finalized, &flag);
    *finalised = flag != 0;
    return GG_OK;
}

gg_status gg_mpi_check_use(void) {
    bool initialised = false, finalised = false;
    GG_TRY(check_process());
    GG_TRY(mpi_alive(&initialised, &finalised));
    if (finalised) return gg_fail(GG_ERROR_STATE, "MPI has been finalised in this process");
    return gg_one_thread_check("MPI");
}

/* Seconds that a rank which need not report waits for the reporting rank to end it. */
#define SECONDS_TO_BE_ENDED 30.0

/* One rank of a host says that this one has ended with this code, then all ranks are ended. Nothing where there is one.
 */
static void end_all(int code) {
    int size = 0;
    if (MPI_Comm_size(MPI_COMM_WORLD, &size) != MPI_SUCCESS || size < 2) return;
    if (gg_mpi_first_to_report())
        fprintf(stderr, "gossipgrad: rank %d ended with exit code %d: this ends all ranks\n", gg_mpi_world_rank(),
                code & 0xff);
    else gg_clock_sleep(SECONDS_TO_BE_ENDED);
    gg_mpi_abort(code & 0xff);
}

/* MPI_Finalize deletes the attributes of MPI_COMM_SELF while MPI still works: called by whoever finalises it. */
static int at_finalize(MPI_Comm comm, int key, void *value, void *extra) {
    (void)comm, (void)key, (void)value, (void)extra;
    if (!is_here()) return MPI_SUCCESS;
    if (exit_code != 0) end_all(exit_code);
    (void)gg_mpi_wait_for_ends(stop_timeout); /* there is no caller left to handle a failure */
    return MPI_SUCCESS;
}

static gg_status hook_finalize(void) {
    int key = MPI_KEYVAL_INVALID;
    GG_TRY_MPI(MPI_Comm_create_keyval, MPI_COMM_NULL_COPY_FN, at_finalize, &key, NULL);
    GG_TRY_MPI(MPI_Comm_set_attr, MPI_COMM_SELF, key, NULL);
    GG_TRY_MPI(MPI_Comm_free_keyval, &key);
    return GG_OK;
}

/* From now on the end of the process stops MPI; with an exit code other than 0 it ends all ranks. */
#ifdef __GLIBC__
static void end_at_exit(int code, void *unused) {
    int initialised = 0, finalised = 0;
    (void)unused;
    const bool runs = is_here() && MPI_Initialized(&initialised) == MPI_SUCCESS && initialised &&
                      MPI_Finalized(&finalised) == MPI_SUCCESS && !finalised;
    if (runs && code != 0) end_all(code);
    gg_mpi_stop();
}

static gg_status stop_at_exit(void) {
    return on_exit(end_at_exit, NULL) == 0 ? GG_OK : gg_fail(GG_ERROR_MEMORY, "on_exit: no room for another function");
}
#else
/* Other C libraries do not pass the code: a rank that ends with one other than 0 then waits for the others. */
static gg_status stop_at_exit(void) {
    return atexit(gg_mpi_stop) == 0 ? GG_OK : gg_fail(GG_ERROR_MEMORY, "atexit: no room for another function");
}
#endif

gg_status gg_mpi_start(int launched) {
    gg_status status = GG_OK;
    bool initialised = false, finalised = false, locked = false;
    int size = 0, level = 0;
    GG_TRY_CLEANUP(check_process()); /* in a forked process the lock may be held for ever */
    locked = pthread_mutex_lock(&starting) == 0;
    gg_mpi_keep_launcher();
    GG_TRY_CLEANUP(check_library());
    GG_TRY_CLEANUP(mpi_alive(&initialised, &finalised));
    if (finalised) {
        status = gg_fail(GG_ERROR_STATE, "MPI has been finalised in this process and cannot be started again");
        goto cleanup;
    }
    if (!initialised) {
        set_defaults();
        double begin = gg_clock_now();
        GG_TRY_MPI_CLEANUP(MPI_Init_thread, NULL, NULL, MPI_THREAD_FUNNELED, &level);
        init_seconds = gg_clock_now() - begin;
        ours = true;
        process = getpid();
        if (level < MPI_THREAD_FUNNELED) {
            status = gg_fail(GG_ERROR_UNSUPPORTED, "this MPI library does not allow threads (level %d, wanted %d)",
                             level, MPI_THREAD_FUNNELED);
            goto cleanup;
        }
    }
    process = getpid();
    if (!hooked) {
        hooked = true;
        GG_TRY_CLEANUP(hook_finalize());
        GG_TRY_CLEANUP(stop_at_exit());
    }
    GG_TRY_MPI_CLEANUP(MPI_Comm_size, MPI_COMM_WORLD, &size);
    if (launched > 0 && launched != size) {
        status = gg_fail(
            GG_ERROR_COMM,
            "the launcher started %d ranks, but MPI sees %d: it belongs to another MPI than the library in use; "
            "allowed: gossipgrad run -n %d script.py, which finds the right one",
            launched, size, launched);
        goto cleanup;
    }
    if (!initialised) GG_TRY_CLEANUP(gg_mpi_questions_open(MPI_COMM_WORLD));
cleanup:
    if (locked) pthread_mutex_unlock(&starting);
    return status;
}

static int portable_level(int level) {
    const int levels[] = {MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED, MPI_THREAD_MULTIPLE};
    for (int i = 3; i > 0; --i)
        if (level >= levels[i]) return i;
    return 0;
}

gg_status gg_mpi_query(gg_mpi_info *info) {
    bool finalised = false;
    int level = 0;
    *info = (gg_mpi_info){.size = 1, .init_seconds = init_seconds, .ours = ours};
    one_line(BUILT_AGAINST, info->built_against, sizeof info->built_against);
#ifdef OMPI_HAVE_MPI_EXT_FTMPI
    info->fault_tolerance = true;
#endif
    GG_TRY(library_version(info->library, sizeof info->library));
    GG_TRY(mpi_alive(&info->initialised, &finalised));
    if (!info->initialised || finalised) return GG_OK;
    GG_TRY_MPI(MPI_Comm_rank, MPI_COMM_WORLD, &info->rank);
    GG_TRY_MPI(MPI_Comm_size, MPI_COMM_WORLD, &info->size);
    GG_TRY_MPI(MPI_Query_thread, &level);
    info->thread_level = portable_level(level);
    info->cuda = gg_mpi_reads_devices();
    return GG_OK;
}

void gg_mpi_set_stop_timeout(double seconds) { stop_timeout = seconds; }

void gg_mpi_stop(void) {
    bool initialised = false, finalised = false;
    if (!ours || !is_here()) return;
    if (mpi_alive(&initialised, &finalised) == GG_OK && initialised && !finalised) {
        (void)MPI_Finalize();
    }
    ours = false;
}

void gg_mpi_abort(int code) {
    bool initialised = false, finalised = false;
    if (check_process() != GG_OK) return;
    if (mpi_alive(&initialised, &finalised) == GG_OK && initialised && !finalised)
        (void)MPI_Abort(MPI_COMM_WORLD, code);
}
